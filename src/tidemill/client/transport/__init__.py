"""Connections to the broker: endpoints, sockets, retries."""
