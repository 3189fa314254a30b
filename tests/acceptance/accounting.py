"""The books of a load: the answers of every client, to be compared with what the broker then holds.

Each sender writes down what it was answered, and nothing else: an answer that never came is written down as
such. `settle` opens the data directory afterwards and compares entry by entry.
"""

from __future__ import annotations

import threading
from collections import Counter
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path

from acceptance.command_line import run
from tidemill.broker.embedded import open_broker


class Told(Enum):
    """The answer to a client's cancel."""

    NOT_ASKED = "not asked"
    CANCELLED = "cancelled"
    RELEASED = "released"
    NO_ANSWER = "no answer"


@dataclass(slots=True)
class Entry:
    """One message, as its sender knows it."""

    is_acknowledged: bool
    cancel: Told = Told.NOT_ASKED


@dataclass(slots=True)
class Book:
    """Entries by body, from any number of threads."""

    entries: dict[str, Entry] = field(default_factory=dict)
    faults: list[str] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def write(self, body: str, entry: Entry) -> None:
        with self._lock:
            assert body not in self.entries
            self.entries[body] = entry

    def acknowledged(self) -> int:
        with self._lock:
            return sum(entry.is_acknowledged for entry in self.entries.values())

    def must_be_there(self) -> set[str]:
        """Bodies of which a client was promised that they go into the topic."""
        kept = (Told.NOT_ASKED, Told.RELEASED)
        return {b for b, entry in self.entries.items() if entry.is_acknowledged and entry.cancel in kept}

    def must_not_be_there(self) -> set[str]:
        """Bodies of which a client was promised that they never do."""
        return {body for body, entry in self.entries.items() if entry.cancel is Told.CANCELLED}


def bodies_in_topic(directory: Path, topic: str) -> Counter[str]:
    """How often each body is in its topic; fails if one came before its time."""
    found: Counter[str] = Counter()
    with open_broker(directory) as broker:
        assert broker.status().pending == 0
        for queue in range(broker.topics.require(topic).queue_count):
            offset = 0
            while rows := broker.views.read(topic, queue, offset, 1000):
                for row in rows:
                    assert row.released_at_ms >= row.message.deliver_at_ms
                    found[row.message.body.decode()] += 1
                offset = rows[-1].offset + 1
    return found


def settle(book: Book, directory: Path, topic: str) -> Counter[str]:
    """Compare the book with the directory; returns what is in the topic."""
    assert not book.faults
    found = bodies_in_topic(directory, topic)
    assert not book.must_be_there() - set(found), "acknowledged, and lost"
    assert not {body for body, count in found.items() if count > 1}, "twice in its topic"
    assert not book.must_not_be_there() & set(found), "answered as cancelled, and released"
    assert set(found) <= set(book.entries), "no client sent this"
    checked = run("check", directory)
    assert checked.returncode == 0, checked.stdout
    return found
