"""The find index: from the hash of an id or key to messages."""
