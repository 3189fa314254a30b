"""The Arrow Flight endpoint."""
