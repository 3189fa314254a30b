"""Changing what is stored: cancel, reschedule, transactions, topics; and the ids of such requests."""
