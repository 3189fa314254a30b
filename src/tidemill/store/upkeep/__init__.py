"""Upkeep: retention, the cut of the log's head, scrubs and reserved disk space."""
