"""The verdict: did everything hold? Judged from the records and, once more, from the topic itself.

Owns what "held" means. Every claim is one row with what was seen; the demo succeeds only if all are true.
"""

from __future__ import annotations

import math
import tempfile
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from tidemill.broker.broker import Broker
from tidemill.cli.demo.stage import TOPIC, Closing, Record, Stage
from tidemill.cli.demo.story import Fate
from tidemill.core.model import CancelAnswer, Via

ON_TIME_MS = 500  # generous; the table shows what it really was
_PROCESSES_IN_A_ROW = 3  # releaser, endpoint and shop: a busy machine may keep each of them waiting

_PATH_NAMES = {Via.SPARK: "through Spark", Via.NEAR: "near", Via.EMBEDDED: "through the takeover"}
_PAYMENTS = {Fate.UNPAID: 0, Fate.EXTENDED: 0, Fate.PAID: 1, Fate.PAID_TWICE: 2, Fate.TOO_LATE: 1}


@dataclass(frozen=True, slots=True)
class Claim:
    """One thing that must hold, whether it did, and what was seen."""

    text: str
    holds: bool
    seen: str


@dataclass(frozen=True, slots=True)
class Verdict:
    claims: list[Claim]
    summary: str

    @property
    def holds(self) -> bool:
        return all(claim.holds for claim in self.claims)


def judge(stage: Stage, broker: Broker) -> Verdict:
    """Check the records, and the data directory that the stage left."""
    records = list(stage.records.values())
    in_topic = _in_topic(broker)
    closings = [closing for record in records for closing in record.closings]
    with tempfile.TemporaryDirectory(prefix="tidemill-demo-check-") as scratch:
        findings = broker.check(Path(scratch))
    claims = [
        _once(records, in_topic),
        _never_early(closings),
        _answers(records),
        _extended(records),
        Claim(
            "killed in the middle: nothing lost",
            stage.pending_at_start == stage.pending_at_stop > 0,
            f"{stage.pending_at_stop} pending before, {stage.pending_at_start} after",
        ),
        *([_paths(stage, closings)] if stage.is_on_spark else []),
        _on_time(stage, closings),
        Claim("the data directory is sound", not findings, findings[0] if findings else "no finding"),
    ]
    return Verdict(claims, _summary(stage, records, closings))


def _in_topic(broker: Broker) -> Counter[str]:
    """How often each order is in the topic, read from its queues."""
    found: Counter[str] = Counter()
    for queue_id in range(broker.topics.require(TOPIC).queue_count):
        for queued in broker.views.read(TOPIC, queue_id, 0, 10_000):
            found[queued.message.keys[0]] += 1
    return found


def _once(records: list[Record], in_topic: Counter[str]) -> Claim:
    due = [record for record in records if not record.is_cancelled]
    wrong = [r for r in due if len(r.closings) != 1 or in_topic[r.order.key] != 1]
    stray = [r for r in records if r.is_cancelled and (r.closings or in_topic[r.order.key])]
    seen = f"{len(due) - len(wrong)} of {len(due)} closed once, {len(stray)} cancelled ones came through"
    return Claim("unpaid orders closed exactly once", not wrong and not stray, seen)


def _never_early(closings: list[Closing]) -> Claim:
    earliest = min((min(c.late_ms, c.released_ms - c.due_ms) for c in closings), default=0)
    return Claim("never before its time", earliest >= 0, f"the earliest came {earliest} ms after it")


def _answers(records: list[Record]) -> Claim:
    wrong = [r for r in records if len(r.payments) != _PAYMENTS[r.order.fate] or not _are_true(r)]
    given = Counter(payment.answer.value for record in records for payment in record.payments)
    return Claim(
        "every payment got a correct answer",
        not wrong,
        ", ".join(f"{count} {answer}" for answer, count in given.most_common()),
    )


def _are_true(record: Record) -> bool:
    """Whether every answer agrees with the outcome of the order."""
    is_cancelled = False
    for payment in record.payments:
        match payment.answer:
            case CancelAnswer.CANCELLED:
                is_true = not is_cancelled and not record.closings
                is_cancelled = True
            case CancelAnswer.ALREADY_CANCELLED:
                is_true = is_cancelled
            case CancelAnswer.RELEASED:
                released_ms = [closing.released_ms for closing in record.closings]
                is_true = bool(released_ms) and released_ms[0] <= payment.answered_ms
            case _:
                is_true = False
        if not is_true:
            return False
    return True


def _extended(records: list[Record]) -> Claim:
    asked = [r for r in records if r.order.fate is Fate.EXTENDED]
    moved = [r for r in asked if r.is_extended and len(r.closings) == 1 and r.closings[0].due_ms == r.due_ms]
    # Only if the broker took very long to come back: a refused request came after the order's time.
    late = [r for r in asked if not r.is_extended and r.was_extended_too_late and len(r.closings) == 1]
    seen = f"{len(moved)} of {len(asked)} moved" + (f", {len(late)} asked too late" if late else "")
    return Claim("more time was given when asked for", len(moved) + len(late) == len(asked), seen)


def _on_time(stage: Stage, closings: list[Closing]) -> Claim:
    late = sorted(c.late_ms for c in closings if not stage.was_delayed_by_the_kill(c))
    waited = len(closings) - len(late)
    seen = f"p50 {percentile(late, 50)} ms, p99 {percentile(late, 99)} ms, max {max(late, default=0)} ms"
    if waited:
        seen += f" ({waited} more waited for the restart)"
    allowed_ms = ON_TIME_MS
    if stage.machine_late_ms > ON_TIME_MS // 10:
        allowed_ms += _PROCESSES_IN_A_ROW * stage.machine_late_ms
        seen += f"; the machine is busy: threads wait up to {stage.machine_late_ms} ms for the CPU"
    return Claim("closed within milliseconds of its time", bool(late) and late[-1] <= allowed_ms, seen)


def _paths(stage: Stage, closings: list[Closing]) -> Claim:
    counts = Counter(closing.via for closing in closings)
    taken = [via for via in _PATH_NAMES if counts[via] or (via is Via.SPARK and stage.was_spark_too_slow)]
    holds = len(taken) == len(_PATH_NAMES) and stage.takeover_ms is not None
    seen = ", ".join(f"{counts[via]} {name}" for via, name in _PATH_NAMES.items())
    if stage.spark_start_ms is None:
        seen = "Spark did not start in time"
    elif stage.takeover_ms is None:
        seen += "; the broker did not take over"
    elif stage.was_spark_too_slow:
        seen += "; Spark was so slow on this machine that the broker took over before the kill"
    return Claim("every path was used", holds, seen)


def by_path(stage: Stage) -> list[tuple[str, list[int]]]:
    """Each path of messages and their lateness, without those that the kill delayed."""
    names = _PATH_NAMES if stage.is_on_spark else {**_PATH_NAMES, Via.EMBEDDED: "through the wheel"}
    closings = [closing for record in stage.records.values() for closing in record.closings]
    return [
        (name, sorted(c.late_ms for c in closings if c.via is via and not stage.was_delayed_by_the_kill(c)))
        for via, name in names.items()
    ]


def percentile(ordered: list[int], percent: int) -> int:
    return ordered[max(0, math.ceil(len(ordered) * percent / 100) - 1)] if ordered else 0


def _summary(stage: Stage, records: list[Record], closings: list[Closing]) -> str:
    by_wheel = sum(closing.via in (Via.EMBEDDED, Via.SPARK) for closing in closings)
    cancelled = sum(record.is_cancelled for record in records)
    waited = [closing.late_ms for closing in closings if stage.was_delayed_by_the_kill(closing)]
    text = (
        f"{len(records)} orders were placed. {cancelled} were paid in time, so their time-outs were "
        f"cancelled and never fired. The other {len(closings)} were closed when their time came: "
        f"{by_wheel} had gone through the timer wheel on disk, {len(closings) - by_wheel} came to the "
        "releaser without it (due too soon for the wheel, or found by the scan after the restart)."
    )
    if waited:
        text += (
            f" {len(waited)} fell due while the broker was dead and went out as soon as it was back, "
            f"at most {max(waited)} ms late."
        )
    return text
