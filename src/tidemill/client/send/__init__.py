"""The client's sends: drafts, ids, and requests that many sends share."""
