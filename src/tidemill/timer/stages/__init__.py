"""The stages of a step: pure functions over NumPy arrays. No disk, no clock, no store."""
