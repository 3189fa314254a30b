"""What becomes of a delivery: settled, or visible again at another time.

Owns the verbs that an ack token is for, and who is woken by them. An ack token counts as long as its delivery
is the message's last one and nothing has settled it. All deliveries of a call are one frame.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from tidemill.broker.consume.ack_tokens import decode_ack_token, group_queue_held
from tidemill.broker.consume.receiver import INVISIBLE_MS_MAX, Receiver
from tidemill.core.arguments import require_kind, require_whole
from tidemill.store.consumers.consumer_state import ACT_CHANGE, ACT_SETTLE, CHANGE, GroupQueue
from tidemill.store.message_store import MessageStore


class Acks:
    """The ack and change-invisibility verbs. Thread-safe."""

    def __init__(self, store: MessageStore, receiver: Receiver, now_ms: Callable[[], int]) -> None:
        self._store = store
        self._receiver = receiver
        self._now_ms = now_ms

    def ack(self, ack_tokens: Sequence[str]) -> list[bool]:
        """Settle deliveries; False where the ack token is no longer the valid one."""
        return self._settle_or_change(ack_tokens, None)

    def change_invisibility(
        self, ack_tokens: Sequence[str], invisible_ms: int, *, is_untried: bool = False
    ) -> list[bool]:
        """Let messages become visible again `invisible_ms` from now (0: at once).

        With `is_untried` these deliveries do not count as attempts.
        """
        require_whole("invisible_ms", invisible_ms, 0, INVISIBLE_MS_MAX)
        require_kind("untried", is_untried, bool, "True or False")
        require_kind("ack_tokens", ack_tokens, (list, tuple), "a list of texts")
        visible_at_ms = self._now_ms() + invisible_ms
        return self._settle_or_change(ack_tokens, [visible_at_ms] * len(ack_tokens), is_untried=is_untried)

    def put_off(self, ack_tokens: Sequence[str], visible_at_ms: Sequence[int]) -> list[bool]:
        """Let messages become visible again, each at its own time."""
        return self._settle_or_change(ack_tokens, visible_at_ms)

    def _settle_or_change(
        self, ack_tokens: Sequence[str], visible_at_ms: Sequence[int] | None, *, is_untried: bool = False
    ) -> list[bool]:
        require_kind("ack_tokens", ack_tokens, (list, tuple), "a list of texts")
        times_ms: Sequence[int | None] = visible_at_ms or [None] * len(ack_tokens)
        parsed = [decode_ack_token(ack_token) for ack_token in ack_tokens]
        consumers, answers, end = self._store.consumers, [], 0
        freed: set[tuple[str, str]] = set()
        act = ACT_SETTLE if visible_at_ms is None else ACT_CHANGE
        rows: list[tuple[int, ...]] = []
        settled: set[tuple[GroupQueue, int]] = set()
        with consumers.lock:
            for delivery, at_ms in zip(parsed, times_ms, strict=True):
                group_queue = group_queue_held(delivery, consumers.state, self._store.topics)
                is_valid = group_queue is not None and (group_queue, delivery.offset) not in settled
                is_valid = is_valid and (group_queue, delivery.offset) not in consumers.settling
                answers.append(is_valid)
                if is_valid and group_queue:
                    group_id, topic_id, queue_id = group_queue
                    number, offset = delivery.number, delivery.offset
                    if self._frees_others(group_queue, offset, at_ms):
                        freed.add((self._receiver.received_as(delivery.topic, queue_id), delivery.group))
                    place = (queue_id, group_id, topic_id)
                    rows.append((act, int(is_untried), *place, number, offset, at_ms or 0))
                    if act == ACT_SETTLE:
                        settled.add((group_queue, offset))
            if rows:  # one frame for all of them
                end = consumers.append(np.array(rows, CHANGE), self._now_ms())
        consumers.wait(end)
        if freed:
            self._store.notifier.announce(freed)
        return answers

    def _frees_others(self, group_queue: GroupQueue, offset: int, visible_at_ms: int | None) -> bool:
        """Whether a message may be had sooner: this one, or, in a FIFO group, the one behind it."""
        state = self._store.consumers.state
        if visible_at_ms is not None:
            progress = state.progress(group_queue)
            return progress is not None and visible_at_ms < progress.taken[offset][1]
        group = state.group(state.group_name(group_queue[0]))
        return group is not None and group.is_fifo
