"""`python -m benchmarks compare`: the same work for Tidemill and common alternatives."""
