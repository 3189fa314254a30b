"""Consuming: receive, ack, retries and dead letters."""
