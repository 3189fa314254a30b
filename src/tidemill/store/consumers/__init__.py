"""The consumers' state and its log."""
