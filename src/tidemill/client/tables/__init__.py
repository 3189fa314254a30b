"""The client's verbs for whole tables, over Flight."""
