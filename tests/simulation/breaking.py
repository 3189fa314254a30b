"""The one error of the simulation."""

from __future__ import annotations


class Broken(AssertionError):
    """The broker did something that must never happen."""
