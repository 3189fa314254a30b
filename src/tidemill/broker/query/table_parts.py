"""Cuts a table into parts that several readers can take at once, each a request of its own.

What waits is cut by seq, what was released by queue and offset. The parts hold every row once; their ends
are fixed when they are made, so what comes later is in none of them.
"""

from __future__ import annotations

from dataclasses import replace

from tidemill.broker.query.table_schemas import Wanted
from tidemill.broker.query.table_views import TableViews
from tidemill.store.message_store import MessageStore

PARTS_MAX = 1024
_ROWS_MIN = 1 << 16  # a smaller part is not worth a reader of its own


class TableParts:
    """Makes parts of requests. Thread-safe."""

    def __init__(self, store: MessageStore, views: TableViews) -> None:
        self._store = store
        self._views = views

    def parts(self, wanted: Wanted, count: int) -> list[Wanted]:
        """About `count` requests that together ask for the same; at least one."""
        wanted.schema()
        if wanted.table == "pending":
            return [wanted] if wanted.only_key is not None else self._by_seq(wanted, count)
        return [wanted] if wanted.table == "queues" else self._by_queue(wanted, count)

    def _by_seq(self, wanted: Wanted, count: int) -> list[Wanted]:
        ledger = self._store.ledger
        low, high = wanted.seq_range()
        first, end = max(low, ledger.head_seq), min(high, ledger.next_seq)
        each = max(_ROWS_MIN, -(-(end - first) // count))
        bounds = [(start, min(end, start + each)) for start in range(first, end, each)] or [(end, end)]
        return [replace(wanted, from_seq=start, to_seq=stop) for start, stop in bounds]

    def _by_queue(self, wanted: Wanted, count: int) -> list[Wanted]:
        ranges = list(self._views.queue_ranges(wanted, self._views.topics_of(wanted)))
        total = sum(end - first for _, _, first, end in ranges)
        each = max(_ROWS_MIN, -(-total // count))
        parts: list[Wanted] = []
        rows_left = 0
        for topic, queue_id, first, end in ranges:
            for start in range(first, end, each):
                stop = min(end, start + each)
                last = parts[-1] if parts else None
                # Small queues of one topic share a part.
                if last is not None and last.topic == topic.name and stop - start <= rows_left:
                    parts[-1] = replace(
                        last,
                        queues=(*last.queues, queue_id),
                        offsets={**last.offsets, queue_id: start},
                        until={**last.until, queue_id: stop},
                    )
                else:
                    rows_left = each
                    parts.append(
                        replace(
                            wanted,
                            topic=topic.name,
                            queues=(queue_id,),
                            offsets={queue_id: start},
                            until={queue_id: stop},
                        )
                    )
                rows_left -= stop - start
        return parts or [replace(wanted, to_ms=0)]
