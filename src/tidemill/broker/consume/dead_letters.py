"""Dead letters: messages a group has given up on, kept in `%DLQ%group` for inspection.

Owns what a dead letter looks like and what operators do with them: list the open ones, and resend them.
A delivery becomes one at its last attempt, or when its consumer says so (`retries.py`). Resending puts a
letter into `%RETRY%group`, so that only that group sees it again, with all its attempts before it; the frame
that stores it settles the letter. A letter is dealt with when the group has settled it in its dead-letter
topic. The frame that buries a message also settles the delivery it takes the place of.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from tidemill.broker.change.topic_admin import TopicAdmin
from tidemill.broker.send.admission import DEAD_LETTER_PREFIX, RETRY_PREFIX
from tidemill.core.arguments import require_whole
from tidemill.core.errors import UnknownTopicError
from tidemill.core.limits import ANSWER_BYTES_MAX
from tidemill.core.model import NO_TIME_MS, MessageType, StoredMessage
from tidemill.core.property_names import ATTEMPTS, LETTER_ID, LETTER_TOPIC, ORIGIN_ID, ORIGIN_TOPIC
from tidemill.store.consumers.consumer_log import change_rows
from tidemill.store.consumers.consumer_state import ACT_TAKE, Group, GroupQueue
from tidemill.store.formats.frames import Settlement
from tidemill.store.formats.framing import framed
from tidemill.store.formats.new_messages import new_messages
from tidemill.store.message_store import MessageStore
from tidemill.store.topics import Topic

# How long a letter on its way stays out of sight, should we die on the way.
_LEASE_MS = 60_000
_LIMIT_MAX = 1_000_000
_RESEND_COUNT = 1024

TopicFilter = Callable[[str], bool]


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A message that a group gave up on."""

    group: str
    topic: str  # where it came from
    queue_id: int
    offset: int
    died_at_ms: int
    attempts: int
    message: StoredMessage


class DeadLetters:
    """The list and resend verbs. Thread-safe."""

    def __init__(self, store: MessageStore, topics: TopicAdmin, now_ms: Callable[[], int]) -> None:
        self._store = store
        self._topics = topics
        self._now_ms = now_ms

    # -- looking ----------------------------------------------------------------------------------

    def groups(self) -> list[str]:
        """Groups that have a topic of dead letters."""
        names = [topic.name for topic in self._store.topics]
        return sorted(n.removeprefix(DEAD_LETTER_PREFIX) for n in names if n.startswith(DEAD_LETTER_PREFIX))

    def waiting(
        self,
        group_name: str,
        *,
        limit: int = 100,
        bytes_max: int = ANSWER_BYTES_MAX,
        accepts_topic: TopicFilter | None = None,
    ) -> list[DeadLetter]:
        """Letters that the group has not dealt with, oldest first; at most so many.

        Ends with the one whose body takes it over `bytes_max`. `accepts_topic`: only those sent to such.
        """
        require_whole("limit", limit, 1, _LIMIT_MAX)
        bytes_left = bytes_max
        found: list[DeadLetter] = []
        for letter in self._letters(group_name, accepts_topic):
            if len(found) >= limit or bytes_left <= 0:
                break
            found.append(letter)
            bytes_left -= len(letter.message.body)
        return sorted(found, key=lambda letter: letter.died_at_ms)

    def _letters(self, group_name: str, accepts_topic: TopicFilter | None) -> Iterator[DeadLetter]:
        topic = self._store.topics.named(DEAD_LETTER_PREFIX + group_name)
        group = self._store.consumers.state.group(group_name)
        if topic is None or group is None:
            return
        for queue_id in range(topic.queue_count):
            group_queue = (group.id, topic.id, queue_id)
            for offset in self._open_offsets(group_queue):
                letter = self._letter(group, topic, queue_id, offset)
                if letter is not None and (accepts_topic is None or accepts_topic(letter.topic)):
                    yield letter

    def _open_offsets(self, group_queue: GroupQueue) -> list[int]:
        """Offsets of letters that are not settled, in order."""
        end = self._store.queues.end(group_queue[1:])
        first_kept = self._store.queues.first_live(group_queue[1:], self._store.log.head)
        consumers = self._store.consumers
        with consumers.lock:
            progress = consumers.state.progress(group_queue)
            next_offset = progress.next_offset if progress is not None else 0
            out = sorted(progress.taken) if progress is not None else []
        out = [
            offset
            for offset in out
            if offset >= first_kept and (group_queue, offset) not in consumers.settling
        ]
        return [*out, *range(max(next_offset, first_kept), end)]

    def _letter(self, group: Group, topic: Topic, queue_id: int, offset: int) -> DeadLetter | None:
        rows = self._store.queues.read((topic.id, queue_id), offset, offset + 1)
        if not len(rows) or self._store.is_expired(int(rows[0]["place"])):
            return None
        message = self._store.readable(int(rows[0]["place"]))
        if message is None:
            return None
        origin = message.properties.get(LETTER_TOPIC, "")
        died_at_ms = int(rows[0]["released_at_ms"])
        return DeadLetter(group.name, origin, queue_id, offset, died_at_ms, attempts_of(message), message)

    # -- resending --------------------------------------------------------------------------------

    def resend(
        self,
        group_name: str,
        ids: Sequence[str] | None = None,
        *,
        accepts_topic: TopicFilter | None = None,
    ) -> int:
        """Give letters to their group once more: those with these ids, or all (None); says how many.

        A letter whose topic is gone, or not accepted, stays where it is.
        """
        wanted = None if ids is None else frozenset(ids)
        chosen, gone = [], set()
        for letter in self._letters(group_name, accepts_topic):
            if wanted is None or letter.message.id in wanted:
                if self._store.topics.named(letter.topic) is None:
                    gone.add(letter.topic)
                else:
                    # Not the body: letters may be many. It is read again when its turn comes.
                    chosen.append(replace(letter, message=replace(letter.message, body=b"")))
        if gone and not chosen:
            raise UnknownTopicError(f"the topic of these dead letters was deleted: {', '.join(sorted(gone))}")
        parts = (chosen[at : at + _RESEND_COUNT] for at in range(0, len(chosen), _RESEND_COUNT))
        return sum(self._resend(group_name, part) for part in parts)

    def _resend(self, group_name: str, letters: Sequence[DeadLetter]) -> int:
        targets = {
            name: self._topics.retry_queue(group_name, self._topics.require(name))
            for name in {letter.topic for letter in letters}
        }
        letter_topic = self._topics.require(DEAD_LETTER_PREFIX + group_name)
        taken, end = self._take(group_name, letter_topic, letters)
        # What the frame settles must be known to be out when the log is read again.
        self._store.consumers.wait(end)
        settled: list[DeadLetter] = []
        try:
            with self._store.write() as tx:
                read = [(letter, self._resent(letter, letter_topic, targets)) for letter in taken]
                whole = [(letter, message) for letter, message in read if message is not None]
                for part in framed([message for _, message in whole]):
                    letters = [letter for letter, _ in whole[len(settled) : len(settled) + len(part)]]
                    settles = [
                        Settlement(group_name, letter_topic.id, letter.queue_id, letter.offset)
                        for letter in letters
                    ]
                    tx.send_back(new_messages(part), settles, self._now_ms())
                    settled += letters
        finally:
            self._let_go(group_name, letter_topic, [letter for letter in taken if letter not in settled])
        self._store.finish_written()
        return len(settled)

    def _take(
        self, group_name: str, topic: Topic, letters: Sequence[DeadLetter]
    ) -> tuple[list[DeadLetter], int]:
        """Lease letters, except those leased already; the log's end to wait for."""
        consumers, now_ms = self._store.consumers, self._now_ms()
        taken: list[DeadLetter] = []
        end = 0
        with consumers.lock:
            group = consumers.state.group(group_name)
            assert group is not None
            for queue_id in sorted({letter.queue_id for letter in letters}):
                group_queue = (group.id, topic.id, queue_id)
                chosen = [letter for letter in letters if letter.queue_id == queue_id]
                chosen = [letter for letter in chosen if self._is_free(group_queue, letter.offset, now_ms)]
                offsets = [letter.offset for letter in chosen]
                progress = consumers.state.progress(group_queue)
                first = progress.next_offset if progress is not None else 0
                # The cursor passes the others too; they stay open, and visible.
                passed = [o for o in range(first, max(offsets, default=-1) + 1) if o not in set(offsets)]
                rows = np.concatenate(
                    (
                        change_rows(ACT_TAKE, group_queue, passed, 0, 0),
                        change_rows(ACT_TAKE, group_queue, offsets, 1, now_ms + _LEASE_MS),
                    )
                )
                if len(rows):
                    end = consumers.append(rows, now_ms)
                consumers.settling.update((group_queue, offset) for offset in offsets)
                taken += chosen
        return taken, end

    def _is_free(self, group_queue: GroupQueue, offset: int, now_ms: int) -> bool:
        consumers = self._store.consumers
        progress = consumers.state.progress(group_queue)
        if (group_queue, offset) in consumers.settling:
            return False
        if progress is None or offset >= progress.next_offset:
            return True
        held = progress.taken.get(offset)
        return held is not None and held[1] <= now_ms

    def _let_go(self, group_name: str, topic: Topic, letters: Sequence[DeadLetter]) -> None:
        consumers = self._store.consumers
        with consumers.lock:
            group = consumers.state.group(group_name)
            assert group is not None
            for letter in letters:
                consumers.settling.discard(((group.id, topic.id, letter.queue_id), letter.offset))

    def _resent(
        self, letter: DeadLetter, letter_topic: Topic, targets: dict[str, tuple[Topic, int]]
    ) -> StoredMessage | None:
        """The message as its group gets it once more: at once, with all attempts before it. None: damaged."""
        topic, queue_id = targets[letter.topic]
        row = self._store.queues.read((letter_topic.id, letter.queue_id), letter.offset, letter.offset + 1)[0]
        message = self._store.readable(int(row["place"]))
        if message is None:
            return None
        properties = {k: v for k, v in message.properties.items() if k not in (LETTER_TOPIC, LETTER_ID)}
        fresh = replace(message, topic_id=topic.id, queue_id=queue_id, properties=properties)
        return replace(fresh, properties=retry_properties(fresh, letter.topic, 0))


def attempts_of(message: StoredMessage) -> int:
    """How many attempts a message had before it was put where it is."""
    text = message.properties.get(ATTEMPTS, "0")
    return int(text) if text.isdecimal() else 0


def origin_name(message: StoredMessage, topic: Topic) -> str:
    """The topic that a message was sent to, also if it lies in a retry topic now."""
    return message.properties[ORIGIN_TOPIC] if topic.name.startswith(RETRY_PREFIX) else topic.name


def retry_properties(message: StoredMessage, origin: str, attempts: int) -> dict[str, str]:
    """The properties of a message in a retry topic: its own, where it came from, and its attempts."""
    origin_id = message.properties.get(ORIGIN_ID, message.id)
    return {**message.properties, ORIGIN_TOPIC: origin, ORIGIN_ID: origin_id, ATTEMPTS: str(attempts)}


def dead_letter(
    message: StoredMessage, origin: str, target_topic_id: int, queue_id: int, attempts: int
) -> StoredMessage:
    """The message as it lies among the dead letters: untimed, with where it came from."""
    kept = {k: v for k, v in message.properties.items() if k != ORIGIN_TOPIC}
    return replace(
        message,
        topic_id=target_topic_id,
        queue_id=queue_id,
        type=MessageType.NORMAL,
        level=0,
        flags=0,
        deliver_at_ms=NO_TIME_MS,
        properties={**kept, LETTER_TOPIC: origin, LETTER_ID: message.id, ATTEMPTS: str(attempts)},
    )


def bury(
    store: MessageStore,
    topics: TopicAdmin,
    group_name: str,
    origin: str,
    dead: Sequence[tuple[GroupQueue, int, int, StoredMessage]],
    now_ms: int,
) -> None:
    """Move `settling` messages (group_queue, offset, attempts, message) to a group's dead letters."""
    target = topics.find_or_create(DEAD_LETTER_PREFIX + group_name, is_internal=True)
    letters = [
        dead_letter(message, origin, target.id, topics.choose_queue(target, ""), attempts)
        for _, _, attempts, message in dead
    ]
    settles = [
        Settlement(group_name, group_queue[1], group_queue[2], offset) for group_queue, offset, _, _ in dead
    ]
    try:
        with store.write() as tx:
            appended = tx.send_back(new_messages(letters), settles, now_ms)
        store.finish(appended)
    finally:
        with store.consumers.lock:
            store.consumers.settling.difference_update(
                (group_queue, offset) for group_queue, offset, _, _ in dead
            )
