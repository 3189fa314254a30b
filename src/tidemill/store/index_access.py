"""The indexes by subject, as the commit log and the store offer them to the layers above.

Topics, and single states of the ledger, may be read at any time; the rest under the writer lock.
"""

from __future__ import annotations

from tidemill.store.indexes import Indexes


class IndexAccess:
    """What can be looked up: attributes, since sends look up a few of them each."""

    def __init__(self, indexes: Indexes) -> None:
        self.indexes = indexes
        self.bind()

    def bind(self) -> None:
        """Follow the indexes, which were given another state."""
        self.topics = self.indexes.topics
        self.ledger = self.indexes.ledger
        self.entries = self.indexes.entries
        self.levels = self.indexes.levels
        self.find = self.indexes.find
        self.due_counts = self.indexes.due_counts
        self.open_transactions = self.indexes.open_transactions
