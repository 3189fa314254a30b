"""The HTTP endpoint: the admin API, its models, and the dashboard."""
