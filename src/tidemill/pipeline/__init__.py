"""The timer's data pipeline on Spark: source, step, sink, query, driver."""
