"""Where this machine reaches what listens."""

from __future__ import annotations

import pytest

from tidemill.cli.serve_story import _for_people
from tidemill.core.addresses import local_address


@pytest.mark.parametrize(
    ("host", "reached", "shown"),
    [
        ("0.0.0.0", "127.0.0.1", "127.0.0.1"),
        ("::", "::1", "[::1]"),
        ("::1", "::1", "[::1]"),
        ("10.0.0.7", "10.0.0.7", "10.0.0.7"),
        ("broker.example", "broker.example", "broker.example"),
    ],
)
def test_every_address_is_reached_on_this_machine(host: str, reached: str, shown: str) -> None:
    assert (local_address(host), _for_people(host)) == (reached, shown)
