"""Queries: pending messages, history, forecast, status and tables. Reads only."""
