"""Sending: from drafts or columns to stored messages, with all checks, deduplication and limits."""
