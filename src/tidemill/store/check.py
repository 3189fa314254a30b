"""The checker: derives everything once more from the log and compares. Every invariant, findings in words.

Owns no state. It reads the whole log (checksums looked at), applies it to fresh indexes in a scratch
directory, and compares those with the ones in use. On the way it checks what only the log knows: nothing
was released twice, early or out of order. An empty list means everything holds.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from tidemill.core.errors import CorruptionError, DamagedFrameError
from tidemill.log.disk import Disk
from tidemill.log.frame import Frame
from tidemill.store.damage import Repairs
from tidemill.store.derivation import Derivation, QueueKey
from tidemill.store.find.find_runs import PLACE_BIT, Pairs, request_frames_in
from tidemill.store.formats.frames import Base, Kind, Release
from tidemill.store.indexes import Indexes, IndexSizes
from tidemill.store.message_store import MessageStore
from tidemill.store.recovery import Progress
from tidemill.store.topic_queues import TopicQueues

_LISTED_MAX = 20
_COMPARE_ROWS = 1 << 18


def check_store(
    store: MessageStore, disk: Disk, scratch: Path, on_progress: Progress | None = None
) -> list[str]:
    """Findings about an open store that has no writer now; `scratch` is an empty directory to work in.

    `DamagedFrameError` where the log itself does not read back.
    """
    findings: list[str] = []
    derivation, repairs = Derivation(store.log), Repairs()
    fresh = Indexes.create(disk, scratch / "index", lambda: False, IndexSizes(), derivation, repairs)
    queues = TopicQueues(
        disk, scratch / "queues", lambda: False, IndexSizes().queue_chunk_rows, derivation, repairs
    )
    try:
        for frame in store.log.frames(store.log.head, store.log.written_end):
            if on_progress is not None:
                on_progress(frame.end - store.log.head, store.log.written_end - store.log.head)
            if frame.offset == store.log.head:
                fresh.start_from(Base.read(frame.payload))
                queues.set_base(Base.read(frame.payload))
            if frame.kind == Kind.RELEASE:
                findings += _check_release(frame, Release.read(frame.payload), fresh)
            effects = fresh.apply(frame)
            if fresh.find.memory_is_full:
                findings += _check_found(fresh.find.drain(), store)
            if effects.publication is not None:
                queues.publish(effects.publication)
            if effects.forgotten_topic_id is not None:
                queues.forget(effects.forgotten_topic_id)
    except DamagedFrameError:
        raise  # what is derived cannot be judged by a log that does not read back
    except CorruptionError as error:
        return [*findings[:_LISTED_MAX], str(error)]
    findings += _check_found(fresh.find.drain(), store)
    findings += _compare_indexes(store.indexes, fresh)
    findings += _compare_queues(store, fresh, queues)
    findings += _check_consumers(store)
    fresh.entries.close()
    queues.close()
    return findings[:_LISTED_MAX]


def _check_release(frame: Frame, release: Release, before: Indexes) -> list[str]:
    findings = []
    if len(np.unique(release.seqs)) != len(release.seqs):
        findings.append(f"the release at offset {frame.offset} names a seq twice")
    known = release.seqs[release.seqs >= before.ledger.head_seq]
    rows = before.entries.take(known)
    early = known[rows["deliver_at_ms"] > frame.stamp_ms]
    if len(early):
        findings.append(f"the release at offset {frame.offset} came before the time of seq {int(early[0])}")
    for group in release.groups:
        topic_id, queue_id = int(group["topic_id"]), int(group["queue_id"])
        expected = before.topics.next_offset(topic_id, queue_id)
        if int(group["first_offset"]) != expected:
            findings.append(
                f"the release at offset {frame.offset} puts into queue {queue_id} of topic {topic_id} "
                f"at {int(group['first_offset'])}, expected {expected}"
            )
    return findings


def _check_found(pairs: Pairs, store: MessageStore) -> list[str]:
    """Every message must be found by its id and by each of its keys, every request by its id."""
    hashes, refs = pairs
    distinct, which = np.unique(hashes, return_inverse=True)
    found_at, found_refs = store.find.find_many(distinct)
    # Hash and ref as one number each, so that pairs can be looked for in pairs.
    ranked, ranks = np.unique(np.concatenate((refs, found_refs)), return_inverse=True)
    wanted = which * len(ranked) + ranks[: len(refs)]
    found = np.append(np.sort(found_at * len(ranked) + ranks[len(refs) :]), -1)
    missing = refs[found[np.searchsorted(found[:-1], wanted)] != wanted]
    return [f"{_named(int(ref))} is not in the find index" for ref in missing[:_LISTED_MAX].tolist()]


def _named(ref: int) -> str:
    if frames := request_frames_in(np.array([ref], np.uint64)):
        return f"the request that the frame at offset {frames[0]} carried out"
    place = ref & ~int(PLACE_BIT)
    if place == ref:
        return f"the message with seq {ref}"
    return f"the message in row {place & 0xFFFF} of the frame at offset {place >> 16}"


def _compare_indexes(used: Indexes, fresh: Indexes) -> list[str]:
    findings = []
    first, end = max(used.ledger.head_seq, fresh.ledger.head_seq), fresh.ledger.next_seq
    if used.ledger.next_seq != end:
        findings.append(f"the ledger goes up to seq {used.ledger.next_seq}, the log up to {end}")
        return findings
    while first < end:
        stop = min(end, first + _COMPARE_ROWS)
        differs = used.ledger.range_states(first, stop) != fresh.ledger.range_states(first, stop)
        if differs.any():
            seq = first + int(np.flatnonzero(differs)[0])
            states = used.ledger.state(seq).name, fresh.ledger.state(seq).name
            findings.append(f"seq {seq} is {states[0]} in the ledger, {states[1]} in the log")
        if (used.entries.read(first, stop) != fresh.entries.read(first, stop)).any():
            findings.append(f"entries between seq {first} and {stop} differ from the log")
        first = stop
    if used.base() != fresh.base():
        findings.append("topics, queue offsets or totals differ from the log")
    if _due_counts(used) != _due_counts(fresh):
        findings.append("the counts of what is due differ from the log")
    if used.levels.view() != fresh.levels.view():
        findings.append("the level queues differ from the log")
    if any(used.due_counts.pending(topic.id) != fresh.due_counts.pending(topic.id) for topic in fresh.topics):
        findings.append("the number of pending messages of a topic differs from the log")
    if used.open_transactions != fresh.open_transactions:
        findings.append("open transactions differ from the log")
    return findings


def _due_counts(indexes: Indexes) -> list[list[int]]:
    rows: list[list[int]] = np.frombuffer(indexes.due_counts.encode(), "<i8").reshape(-1, 3).tolist()
    return sorted(rows)


def _compare_queues(store: MessageStore, fresh: Indexes, queues: TopicQueues) -> list[str]:
    findings = []
    for topic in fresh.topics:
        for queue_id, end in enumerate(fresh.topics.offsets_of(topic)):
            queue: QueueKey = (topic.id, queue_id)
            if store.queues.end(queue) != end:
                findings.append(
                    f"queue {queue_id} of {topic.name} ends at {store.queues.end(queue)}, the log says {end}"
                )
                continue
            findings += _compare_queue(store, queues, queue, topic.name)
    return findings


def _compare_queue(store: MessageStore, queues: TopicQueues, queue: QueueKey, name: str) -> list[str]:
    end = queues.end(queue)
    first = max(queues.first_live(queue, store.log.head), store.queues.first_live(queue, store.log.head))
    used, fresh = store.queues.read(queue, first, end), queues.read(queue, first, end)
    live = fresh["place"] >> np.uint64(16) >= store.log.head
    live &= fresh["place"] > 0
    if (used[live] != fresh[live]).any():
        return [f"queue {queue[1]} of {name} has rows that differ from the log"]
    seqs = fresh["seq"][live & (fresh["seq"] >= 0)]
    if len(np.unique(seqs)) != len(seqs):
        return [f"queue {queue[1]} of {name} holds a timed message twice"]
    return []


def _check_consumers(store: MessageStore) -> list[str]:
    findings = []
    for (group_id, topic_id, queue_id), progress in store.consumers.state.group_queues():
        end = store.queues.end((topic_id, queue_id))
        name = store.consumers.state.group_name(group_id)
        if progress.next_offset > end:
            findings.append(
                f"group {name} is at {progress.next_offset} of queue {queue_id}, which ends at {end}"
            )
        if any(not 0 <= offset < progress.next_offset for offset in progress.taken):
            findings.append(f"group {name} has taken a message of queue {queue_id} that it was never given")
    return findings
