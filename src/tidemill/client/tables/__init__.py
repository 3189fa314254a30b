"""The client's methods for whole tables, over Flight."""
