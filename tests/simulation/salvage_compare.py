"""A salvaged broker beside the undamaged one: what differs must be in the report."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from simulation.breaking import Broken
from tidemill.broker.salvage import MESSAGES_NAME
from tidemill.log.read_only_disk import ReadOnlyDisk
from tidemill.store.ledger import State
from tidemill.store.salvage.source import SourceLog

if TYPE_CHECKING:
    from tidemill.broker.broker import Broker
    from tidemill.broker.salvage_report import SalvageReport

Row = tuple[int, int, int]  # topic id, queue, offset


@dataclass
class Shown:
    """What a broker holds, in plain values."""

    states: dict[int, State]
    pending: dict[int, tuple[str, bytes, int]]  # seq -> id, body, due
    rows: dict[Row, bytes | None]  # None: expired
    ends: dict[tuple[int, int], int]
    topics: dict[int, str]
    halves: set[tuple[int, str]]

    @classmethod
    def of(cls, broker: Broker) -> Shown:
        store, indexes = broker.store, broker.store.indexes
        ledger = indexes.ledger
        numbers = range(ledger.head_seq, ledger.next_seq)
        states = {seq: State(ledger.state(seq)) for seq in numbers}
        pending = {}
        for seq in (seq for seq, state in states.items() if state is State.PENDING):
            entry = store.entry(seq)
            message = store.message(int(entry["place"]))
            pending[seq] = (message.id, message.body, int(entry["deliver_at_ms"]))
        rows: dict[Row, bytes | None] = {}
        for queue, end in store.queues.ends().items():
            first = store.queues.head(queue)
            for offset, row in enumerate(store.queues.read(queue, first, end), first):
                place = int(row["place"])
                rows[*queue, offset] = None if store.is_expired(place) else store.message(place).body
        return cls(
            states,
            pending,
            rows,
            store.queues.ends(),
            {topic.id: topic.name for topic in indexes.topics},
            {(half.topic_id, half.message_id) for half in indexes.open_transactions.values()},
        )


def compare(
    reference: Broker,
    copy: Broker,
    report: SalvageReport,
    damaged: Path,
    target: Path,
    events: Counter[str],
) -> None:
    """Raise `Broken` where the copy differs and the report does not say so."""
    true, shown = Shown.of(reference), Shown.of(copy)
    listed = {
        line["seq"]: set(line["may_be"])
        for line in map(json.loads, (target / MESSAGES_NAME).read_text().splitlines())
    }
    ranges = [r for region in report.regions for r in region.ranges]
    reached = max([_byte_end(damaged / "log"), *(r["end"] for r in ranges)])
    is_silent = reached < reference.store.log.written_end
    if is_silent:
        events["silent tail"] += 1  # nothing says that there was more
        return
    if report.is_whole and (true.pending != shown.pending or true.rows != shown.rows):
        raise Broken("the report says that nothing is missing, and the copy differs")
    _compare_pending(true, shown, report, listed)
    _compare_rows(true, shown, report)
    is_open = any(not region.is_exact for region in report.regions)
    if not is_open and not report.regions and true.topics != shown.topics:
        raise Broken(f"topics are {shown.topics}, not {true.topics}")
    if not report.regions and true.halves != shown.halves:
        raise Broken(f"open transactions are {shown.halves}, not {true.halves}")
    ended = {(shown_id, half.id) for half in report.possibly_ended for shown_id in _ids(shown, half.topic)}
    if extra := shown.halves - true.halves - ended:
        raise Broken(f"transactions {extra} are open and were not")
    consumers = _byte_end(damaged / "consumers")
    ends = [consumers, *(damage["end"] for damage in report.consumer_damages)]
    is_known = max(ends) >= reference.store.consumers._log.written_end
    _compare_groups(reference, copy, report, true, is_known=is_known)


def _byte_end(directory: Path) -> int:
    """Where the last frame that reads back ends."""
    log = SourceLog(ReadOnlyDisk(), directory)
    return max((frame.end for frame in log.intact_frames()), default=log.head)


def _ids(shown: Shown, name: str) -> list[int]:
    return [topic_id for topic_id, topic in shown.topics.items() if topic == name]


def _compare_pending(true: Shown, shown: Shown, report: SalvageReport, listed: dict[int, set[str]]) -> None:
    lost = {seq for region in report.regions for first, end in region.seqs for seq in range(first, end)}
    lost |= set(range(max(shown.states, default=-1) + 1, max(true.states, default=-1) + 1))
    lost |= set(
        range(min(true.states, default=0), min(shown.states, default=max(true.states, default=-1) + 1))
    )
    may_be = {State.RELEASED: "released", State.CANCELLED: "cancelled", State.MOVED: "moved"}
    for seq, message in true.pending.items():
        if shown.pending.get(seq) != message and seq not in lost:
            raise Broken(
                f"seq {seq} {message} is {shown.pending.get(seq)} ({shown.states.get(seq)}) in the copy"
            )
    for seq, message in shown.pending.items():
        state = true.states.get(seq)
        if state is State.PENDING:
            continue
        if state is None:
            raise Broken(f"seq {seq} {message} is pending and is not in the reference")
        if may_be[state] not in listed.get(seq, ()):
            raise Broken(f"seq {seq} {message} is pending, was {state.name} and is not listed so")
    if extra := set(listed) - set(shown.pending):
        raise Broken(f"seqs {extra} are listed and not pending")


def _compare_rows(true: Shown, shown: Shown, report: SalvageReport) -> None:
    names = {name: topic_id for topic_id, name in shown.topics.items()}
    lost = {
        (names.get(rows.topic, -1), rows.queue, offset)
        for region in report.regions
        for rows in region.queues
        for offset in range(rows.first_offset, rows.end_offset)
    }
    expired = 0
    for row, body in shown.rows.items():
        wanted = true.rows.get(row)
        if body is not None and row in true.rows and wanted is not None and body != wanted:
            raise Broken(f"{row} holds {body!r}, not {wanted!r}")
        if body is not None and row not in true.rows and row[0] in true.topics:
            raise Broken(f"{row} holds {body!r} and is not in the reference")
    for row, body in true.rows.items():
        if body is None or row[0] not in shown.topics or shown.rows.get(row) == body or row in lost:
            continue
        if row[2] >= shown.ends.get(row[:2], 0) and any(not region.is_exact for region in report.regions):
            continue
        expired += 1
    if expired > report.expired_releases and not _has_lost_head(report):
        raise Broken(f"{expired} rows are lost, {report.expired_releases} are reported")


def _has_lost_head(report: SalvageReport) -> bool:
    return any(not region.is_exact and region.time_from_ms is None for region in report.regions)


def _compare_groups(
    reference: Broker, copy: Broker, report: SalvageReport, true: Shown, *, is_known: bool
) -> None:
    is_whole = is_known and not (
        report.consumer_damages or report.consumer_checkpoint_lost or report.unknown_groups or report.regions
    )
    shown_state, true_state = copy.store.consumers.state, reference.store.consumers.state
    names = {group.id: group.name for group in true_state.groups()}
    if is_whole and shown_state.as_dict() != true_state.as_dict():
        raise Broken("consumers differ and the report does not say so")
    for group_queue, progress in shown_state.group_queues():
        wanted = true_state.progress(group_queue)
        if group_queue[1] not in true.topics or shown_state.group_name(group_queue[0]) != names.get(
            group_queue[0]
        ):
            continue
        first = wanted.next_offset if wanted is not None else 0
        taken = set(wanted.taken) if wanted is not None else set()
        if wanted is not None and wanted.resets != progress.resets:
            continue
        unsettled = taken | set(range(first, progress.next_offset))
        wrongly = {o for o in unsettled if o < progress.next_offset} - set(progress.taken)
        if wrongly and not _all_expired(reference, group_queue, wrongly):
            raise Broken(f"group {group_queue} is taken to have settled {wrongly}: {progress}, not {wanted}")


def _all_expired(reference: Broker, group_queue: tuple[int, int, int], offsets: set[int]) -> bool:
    rows = [reference.store.queues.read(group_queue[1:], offset, offset + 1) for offset in offsets]
    return all(not len(row) or reference.store.is_expired(int(row["place"][0])) for row in rows)
