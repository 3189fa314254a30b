from __future__ import annotations

import shutil

import numpy as np
import pyarrow as pa
import pytest

from acceptance.serving import Served
from browser.chromium import NO_CHROMIUM, Visitor, chromium, chromium_path
from tidemill.broker.embedded import open_broker

_MILLION = 1_000_000
_FRAME = 1 << 16
_DAY_MS = 86_400_000
_TOPICS = ("order-timeouts", "mail-digests", "cart-reminders")


# For one file only: as long as it lives, no other test in this process can run an event loop.
@pytest.fixture(scope="module")
def browser():
    if chromium_path() is None:
        pytest.skip(NO_CHROMIUM)
    with chromium() as browser:
        yield browser


@pytest.fixture(scope="module")
def million(browser, tmp_path_factory):
    """A served broker with a million pending messages over two days, the first due in an hour."""
    directory = tmp_path_factory.mktemp("dashboard") / "data"
    chance = np.random.default_rng(11)
    with open_broker(directory) as broker:
        first_ms = broker.clock.now_ms() + 3_600_000
        for number, start in enumerate(range(0, _MILLION, _FRAME)):
            ids = range(start, min(_MILLION, start + _FRAME))
            due = first_ms + chance.integers(0, 2 * _DAY_MS, len(ids))
            body = [b'{"order": %d, "total": "%d.50"}' % (i, i % 300) for i in ids]
            key = [f"order-{i}" for i in ids]
            table = pa.table({"body": body, "deliver_at": due, "key": key})
            broker.send_table(table, topic=_TOPICS[number % len(_TOPICS)])
    served = Served(directory, "--pipeline", "embedded", "--flight-port", "0")
    yield served.start()
    served.stop()
    shutil.rmtree(directory)


@pytest.fixture
def visit(browser):
    """Opens tabs; whatever one of them stumbled over fails the test."""
    made: list[Visitor] = []

    def visit(endpoint: str, **given) -> Visitor:
        made.append(Visitor(browser, endpoint, **given))
        return made[-1]

    yield visit
    for visitor in made:
        visitor.close()
        assert visitor.problems == []
