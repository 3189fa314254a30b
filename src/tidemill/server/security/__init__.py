"""Authentication, permissions, rates and certificates."""
