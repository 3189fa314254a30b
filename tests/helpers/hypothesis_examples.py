"""How many examples a property test looks at: few in `make quick`, many in `make full`."""

from __future__ import annotations

from hypothesis import settings

QUICK = "quick"  # Hypothesis's profiles of `make quick` and `make full`
FULL = "full"
_QUICK_EXAMPLES = 5
_FULL_TIMES = 4
_DEFAULT_EXAMPLES = 100


def register_profiles() -> None:
    settings.register_profile(QUICK, max_examples=_QUICK_EXAMPLES)
    settings.register_profile(FULL, max_examples=_FULL_TIMES * _DEFAULT_EXAMPLES)


def examples(count: int) -> int:
    """The number of a test that needs another than the default: `count` in `make test`."""
    profile = settings.get_current_profile_name()
    return {QUICK: min(count, _QUICK_EXAMPLES), FULL: _FULL_TIMES * count}.get(profile, count)
