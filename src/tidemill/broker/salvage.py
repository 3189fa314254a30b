"""Salvage: a damaged data directory in, a new one with all that can be read out, and a report.

Owns the order. The source is locked and only read. Into the new directory go the log and the index, then
the consumers' state, the other settings and the report; a copy that was broken off
stays marked as unfinished and is refused.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path

from tidemill.broker.control.holds import HOLDS_FORMAT, HOLDS_NAME, decode_holds
from tidemill.broker.control.simulated_time import CLOCK_FORMAT, CLOCK_NAME, decode_clock
from tidemill.broker.identity import (
    DIRECTORY_FORMAT,
    IDENTITY_NAME,
    UNFINISHED_NAME,
    broker_id_in,
    new_broker_id,
    write_identity,
)
from tidemill.broker.level_table import LEVELS_FORMAT, LEVELS_NAME, decode_levels
from tidemill.broker.salvage_report import LostGroup, OpenTransactionDoubt, SalvageReport, region_report
from tidemill.core.durations import format_time
from tidemill.core.errors import DiskFullError, NewerFormatError, RequestError, StorageError
from tidemill.core.limits import MIB, SEGMENT_BYTES
from tidemill.log.checkpoint import Checkpoint, Decode
from tidemill.log.disk import Disk, write_parts
from tidemill.log.read_only_disk import ReadOnlyDisk
from tidemill.store.consumers.consumer_log import CONSUMERS_NAME, write_consumers
from tidemill.store.message_store import MessageStore, StoreSettings
from tidemill.store.salvage.consumers import SalvagedConsumers, read_consumers
from tidemill.store.salvage.copying import LogCopy, Progress
from tidemill.store.salvage.doubts import Doubt, Doubts
from tidemill.store.salvage.hints import Hints
from tidemill.store.salvage.lost_entries import lost_messages
from tidemill.store.salvage.source import SourceLog, newest_checkpoint

REPORT_NAME = "salvage-report.json"
MESSAGES_NAME = "salvage-messages.jsonl"
_LOCK_NAME = "LOCK"
_WRITE_BYTES = 4 * MIB
_SETTINGS: dict[str, tuple[int, Decode]] = {
    LEVELS_NAME: (LEVELS_FORMAT, decode_levels),
    HOLDS_NAME: (HOLDS_FORMAT, decode_holds),
    CLOCK_NAME: (CLOCK_FORMAT, decode_clock),
}
# What a file system may show in an empty directory.
_IGNORED = {"lost+found"}


def salvage(
    source: Path,
    target: Path,
    disk: Disk,
    now_ms: int,
    on_progress: Progress,
    settings: StoreSettings | None = None,
) -> SalvageReport:
    """Copy what can be read of `source` into `target`, which must be new or empty."""
    source, target = source.absolute(), target.absolute()
    if target == source or source in target.parents or target in source.parents:
        raise RequestError(f"{target} and {source} lie inside each other; name a directory elsewhere")
    if set(disk.names(target)) - _IGNORED:
        raise RequestError(f"{target} is not empty; name a new directory")
    reader = ReadOnlyDisk()
    held = reader.lock(source / _LOCK_NAME)
    try:
        log = SourceLog(reader, source / "log")
        if not log.starts:
            raise StorageError(f"{source / 'log'} has no file of a commit log; there is nothing to salvage")
        broker_id = _broker_id(reader, source)
        disk.make_dir(target)
        _require_space(disk, target, log.byte_count)
        lock = disk.lock(target / _LOCK_NAME, "tidemill salvage")
        try:
            made = settings or StoreSettings(segment_bytes=_segment_bytes(reader, source))
            return _Salvage(reader, source, disk, target, log, now_ms).run(broker_id, made, on_progress)
        finally:
            lock.release()
    finally:
        held.release()


def _broker_id(reader: ReadOnlyDisk, source: Path) -> str | None:
    """The id of the broker whose directory this is; None where that cannot be read."""
    identity = newest_checkpoint(reader, source, IDENTITY_NAME, DIRECTORY_FORMAT, broker_id_in)
    if identity is None:
        return None
    if identity.version > DIRECTORY_FORMAT:
        raise NewerFormatError(
            f"{source} has format {identity.version}, this Tidemill reads up to {DIRECTORY_FORMAT}; "
            "use the newer Tidemill that wrote it"
        )
    return broker_id_in(identity.content)


def _segment_bytes(reader: ReadOnlyDisk, source: Path) -> int:
    spare = source / "log" / "spare"
    return reader.size(spare) if reader.exists(spare) and reader.size(spare) else SEGMENT_BYTES


def _require_space(disk: Disk, target: Path, log_bytes: int) -> None:
    free = max(0, disk.free_bytes(target))
    if free < log_bytes + MIB:
        raise DiskFullError(
            f"the disk of {target} is too small: the log takes {log_bytes:,} bytes, {free:,} are free; "
            "free some space or name a directory on another disk"
        )


@dataclass(frozen=True, slots=True)
class _Salvage:
    """One salvage, under the locks of both directories."""

    reader: ReadOnlyDisk
    source: Path
    disk: Disk
    target: Path
    log: SourceLog
    now_ms: int

    def run(self, broker_id: str | None, settings: StoreSettings, on_progress: Progress) -> SalvageReport:
        self._write(UNFINISHED_NAME, [b"this directory is incomplete\n"])
        self.disk.sync_dir(self.target)
        consumers = read_consumers(self.reader, self.source)
        hints = Hints(self.reader, self.source, self.log)
        store = MessageStore(self.disk, self.target, settings)
        try:
            copy = LogCopy(self.log, store, hints, consumers.settled_below, self.now_ms, on_progress)
            copy.run(consumers.queue_ends())
            doubts = Doubts(store, copy.regions, self.now_ms)
            self._write_lines(doubts, store)
            report = self._report(copy, store, consumers, doubts, broker_id)
            end = store.log.written_end
            store.consumers.state = consumers.state
            store.consumers.settle_from_commit_log(copy.settlements)
            state = store.consumers.state
            store.close()
        except BaseException:
            store.release_files()
            raise
        write_consumers(self.disk, self.target / CONSUMERS_NAME, end, state)
        self._copy_settings()
        self._write(REPORT_NAME, [json.dumps(asdict(report), indent=1, ensure_ascii=False).encode()])
        write_identity(self.disk, self.target, report.broker)
        self.disk.remove(self.target / UNFINISHED_NAME)
        self.disk.sync_dir(self.target)
        return report

    def _report(
        self,
        copy: LogCopy,
        store: MessageStore,
        consumers: SalvagedConsumers,
        doubts: Doubts,
        broker_id: str | None,
    ) -> SalvageReport:
        topics = {topic.id: topic.name for topic in store.topics}
        regions = [
            region_report(region, topics, lost_messages(self.reader, self.source, region.lost_seqs))
            for region in copy.regions
        ]
        sent, released, cancelled = store.totals.overall()
        last_damage = max((region.copied_to for region in copy.regions), default=0)
        return SalvageReport(
            source=str(self.source),
            directory=str(self.target),
            broker=broker_id or new_broker_id(),
            has_new_broker_id=broker_id is None,
            log_frames=copy.frame_count,
            log_bytes=store.log.written_end,
            pending=sum(store.due_counts.pending(topic_id) for topic_id in topics),
            sent=sent,
            released=released,
            cancelled=cancelled,
            regions=regions,
            opening_frames=[asdict(damage) for damage in copy.damaged_bases],
            expired_releases=copy.expired_releases,
            unreadable_bytes=self.reader.unreadable_bytes,
            possibly_released=doubts.counts["released"],
            possibly_cancelled=doubts.counts["cancelled"],
            possibly_moved=doubts.counts["moved"],
            possibly_ended=[
                OpenTransactionDoubt(topics.get(half.topic_id, ""), half.message_id)
                for half in store.open_transactions.values()
                if half.place >> 16 < last_damage
            ],
            consumer_damages=[asdict(damage) for damage in consumers.damages],
            consumer_checkpoint_lost=consumers.lost_checkpoint,
            unknown_groups=sorted(consumers.unknown_groups),
            groups=_group_reports(consumers, topics) if not consumers.is_whole or copy.regions else [],
        )

    def _write_lines(self, doubts: Iterable[Doubt], store: MessageStore) -> None:
        lines = (
            json.dumps(
                {
                    "seq": doubt.seq,
                    "id": doubt.id,
                    "topic": doubt.topic,
                    "keys": list(doubt.keys),
                    "due": format_time(doubt.deliver_at_ms),
                    "due_ms": doubt.deliver_at_ms,
                    "may_be": list(doubt.may_be),
                },
                ensure_ascii=False,
            ).encode()
            + b"\n"
            for doubt in doubts
        )
        self._write(MESSAGES_NAME, lines)

    def _write(self, name: str, parts: Iterable[bytes]) -> None:
        with closing(self.disk.open(self.target / name, create=True)) as file:
            write_parts(file, _gathered(parts))
            file.sync()

    def _copy_settings(self) -> None:
        """The small files beside the identity, such as the level table."""
        for name, (version, decode) in _SETTINGS.items():
            content = newest_checkpoint(self.reader, self.source, name, version, decode)
            if content is not None:
                checkpoint = Checkpoint(self.disk, self.target, name, content.version)
                checkpoint.save(content.content, sync=True)


def _gathered(parts: Iterable[bytes]) -> Iterable[bytes]:
    gathered = bytearray()
    for part in parts:
        gathered += part
        if len(gathered) >= _WRITE_BYTES:
            yield bytes(gathered)
            gathered.clear()
    if gathered:
        yield bytes(gathered)


def _group_reports(consumers: SalvagedConsumers, topics: dict[int, str]) -> list[LostGroup]:
    """Where every group goes on, for what may be delivered to it again."""
    state = consumers.state
    return [
        LostGroup(
            state.group_name(group_id),
            topics.get(topic_id, ""),
            queue_id,
            progress.next_offset,
            len(progress.taken),
        )
        for (group_id, topic_id, queue_id), progress in state.group_queues()
    ]
