"""How many examples a property test looks at: as many as it asks for, few in `make quick`."""

from __future__ import annotations

from hypothesis import settings

QUICK = "quick"  # Hypothesis's profile of `make quick`
_QUICK_EXAMPLES = 5


def register_quick() -> None:
    settings.register_profile(QUICK, max_examples=_QUICK_EXAMPLES)


def examples(count: int) -> int:
    """The number that a test asks for by itself, which no profile would lower."""
    return min(count, _QUICK_EXAMPLES) if settings.get_current_profile_name() == QUICK else count
