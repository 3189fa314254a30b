"""`python -m benchmarks compare`: the same work for Tidemill and for what people use in its place."""
