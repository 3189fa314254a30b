"""Taking a shard from a process that does not release it.

Owns the last resort of a takeover: end the process that holds the shard's lock, named by its id and its
start time so that no stranger is hit, never ourselves; if that does not help within a second, put the
shard's directory aside and begin anew. The epoch was raised before, so whatever the old holder still does
has no effect that counts.
"""

from __future__ import annotations

import logging
import os
import select
import signal
from pathlib import Path

from tidemill.core.errors import DirectoryLockedError
from tidemill.core.processes import process_started
from tidemill.log.disk import Disk
from tidemill.timer.shard_lock import LOCK_NAME, holders_by_kernel, parse_holder

logger = logging.getLogger(__name__)

_END_WAIT_MS = 1_000


def free_shard(disk: Disk, shard_directory: Path, epoch: int) -> None:
    """Return when no process holds the shard's lock, whatever that takes."""
    if not disk.exists(shard_directory) or _is_free(disk, shard_directory):
        return
    file = disk.open(shard_directory / LOCK_NAME)
    try:
        note = file.read(0, 200).decode(errors="replace")
    finally:
        file.close()
    noted = parse_holder(note)
    # The note may be missing, or that of an earlier holder; then the kernel is asked. An unknown
    # holder that was only suspended would go on later in the directory that replaced this one.
    for holders in ([noted] if noted else [], holders_by_kernel(shard_directory / LOCK_NAME)):
        are_ended = all(_end_process(holder.pid, holder.started) for holder in holders)
        if are_ended and _is_free(disk, shard_directory):
            return
    aside = shard_directory.with_name(f"{shard_directory.name}.aside-{epoch}")
    logger.warning(
        "%s is still locked (%s); it is moved aside and rebuilt", shard_directory.name, note.strip()
    )
    disk.rename(shard_directory, aside)


def remove_aside(disk: Disk, timer_directory: Path) -> None:
    """Remove directories that were put aside in an earlier life."""
    for name in disk.names(timer_directory):
        if ".aside-" in name:
            disk.remove_tree(timer_directory / name)


def _is_free(disk: Disk, shard_directory: Path) -> bool:
    try:
        disk.lock(shard_directory / LOCK_NAME, "").release()
    except DirectoryLockedError:
        return False
    return True


def _end_process(pid: int, started: int) -> bool:
    """Kill exactly that process and wait for its end."""
    if pid == os.getpid():
        return False
    try:
        handle = os.pidfd_open(pid)
    except OSError:
        return True  # gone already
    try:
        if started and process_started(pid) != started:
            return True  # the id belongs to another process now
        signal.pidfd_send_signal(handle, signal.SIGKILL)
        end = select.poll()  # knows no limit of handles, of which a broker with many clients has thousands
        end.register(handle, select.POLLIN)
        return bool(end.poll(_END_WAIT_MS))
    except OSError:
        return False
    finally:
        os.close(handle)
