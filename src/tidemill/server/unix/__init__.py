"""The Unix socket for clients on the same machine."""
