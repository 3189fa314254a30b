"""The broker: lifecycle, the loops, and the verbs in batches."""
