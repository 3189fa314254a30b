"""Copying what can be read of a damaged data directory into a new one, and saying what is missing."""
