"""The lowest layer: time, errors, limits, values and settings. Standard library only."""
