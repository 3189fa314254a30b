"""The truth and its indexes: commit log, consumer state, and everything derived from them."""
