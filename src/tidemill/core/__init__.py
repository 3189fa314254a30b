"""The ground floor: time, errors, limits, values and settings. Standard library only."""
