"""A disk that breaks by plan: crashes, power cuts, failed syncs, no space; the same way for the same seed.

`FaultyDisk` is a `Disk` over real files in a (temporary) directory, which always hold everything written.
Beside them it keeps what has not been synced: `unsynced.py` for bytes, `names.py` for names, and
`space.py` for free space. Nothing is really synced, so thousands of runs are cheap.

    disk = FaultyDisk(seed=7, plan=FaultPlan(crash_at=12))
    try:
        work_with(disk)
    except SimulatedCrash:
        pass
    disk = disk.crash(power_cut=True)      # the disk as the next process finds it
    reopen_with(disk)

RocksDB's files are its own affair (`faulty_keys.py`): they take no space here, and stay gone once removed.

Directories: a new one survives once it, one below it or its parent was given to `sync_dir`, as journalling
file systems have it; the rename of a directory survives at once. Lock files are not tracked.

Invariant: after a crash, planned or called for, no call on the old disk or its files has any effect.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterable
from pathlib import Path
from random import Random
from typing import Self

from tidemill.log.disk import Disk, DiskFile, LockHandle, Place, RealDisk
from tidemill.log.sorted_keys import SortedKeys
from tidemill.testing.faults import FaultInjector, FaultPlan
from tidemill.testing.faulty_file import FaultyFile, FileNode
from tidemill.testing.faulty_keys import FaultyKeys
from tidemill.testing.names import NameJournal, moved_path
from tidemill.testing.space import FileSpace

_DIRECTORY_LOST_CHANCE = 0.3
_BOUNDLESS_BYTES = 1 << 60
_COPY_BYTES = 1 << 20


class FaultyDisk:
    """A file system that fails as planned. Thread-safe; a thread of a crashed process can do no harm."""

    def __init__(
        self,
        seed: int = 0,
        *,
        plan: FaultPlan | None = None,
        capacity_bytes: int | None = None,
        real: Disk | None = None,
    ) -> None:
        self.capacity_bytes = capacity_bytes  # None: no bound; may be changed at any time
        self._real = real or RealDisk()
        self._faults = FaultInjector(Random(seed))
        self._faults.arm(plan or FaultPlan())
        self._nodes: dict[Path, FileNode] = {}  # by present name: open, or not wholly on the disk
        self._nameless: list[FileNode] = []  # removed or replaced, yet open or able to come back
        self._spaces: dict[Path, FileSpace] = {}  # by present name: every file ever seen
        self._names: NameJournal[FileNode] = NameJournal()
        self._fresh_directories: set[Path] = set()
        self._locks: list[LockHandle] = []
        self._keys: list[FaultyKeys] = []  # every opening of sorted keys
        self._key_directories: set[Path] = set()  # where RocksDB does its own I/O

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # Planning faults and looking on

    def arm(self, plan: FaultPlan) -> None:
        """Follow `plan` from here on; operations are counted anew."""
        self._faults.arm(plan)

    @property
    def operation_count(self) -> int:
        """Operations since the plan was armed, of the kinds it counts."""
        return self._faults.operation_count

    @property
    def sync_count(self) -> int:
        """Syncs of files since the plan was armed."""
        return self._faults.sync_count

    @property
    def trace(self) -> deque[str]:
        """What was done, the newest last, through all crashes."""
        return self._faults.trace

    def crash(self, *, power_cut: bool, plan: FaultPlan | None = None) -> FaultyDisk:
        """End the process. Returns the disk it leaves behind; this one is dead for good.

        Without `power_cut` (kill -9) every byte and name is kept, and what was not synced stays at risk.
        With it, what was not synced is kept, lost or torn by the seed. Locks are let go either way.
        """
        with self._faults.lock:
            left = FaultyDisk(plan=plan, capacity_bytes=self.capacity_bytes, real=self._real)
            left._faults.random = self._faults.random
            left._faults.trace.extend(self.trace)
            left._faults.trace.append("power cut" if power_cut else "kill")
            left._key_directories = self._key_directories
            for keys in self._keys:
                keys.leave(power_cut=power_cut, random=self._faults.random)
            if power_cut:
                self._lose_unsynced()
                left._spaces = self._spaces
            else:
                left._take_over(self)
            self.close()
            return left

    def close(self) -> None:
        """Let go of all files and locks; the disk is dead afterwards."""
        with self._faults.lock:
            self._faults.is_shut = True
            for held in self._locks:
                held.release()
            for keys in self._keys:
                keys.close()
            for node in (*self._nodes.values(), *self._nameless):
                node.real.close()
            self._locks, self._keys, self._nodes, self._nameless = [], [], {}, []

    # The Disk protocol

    def open(self, path: Path, *, create: bool = False) -> DiskFile:
        with self._faults.passing():
            if create and not self._real.exists(path):
                with self._faults.operation("create", path, is_write=True):
                    self._names.created(path, self._node(path, create=True))
            node = self._node(path)
            node.handle_count += 1
            return FaultyFile(path, node, self._faults, self._free_bytes, self._let_go_if_idle)

    def exists(self, path: Path) -> bool:
        with self._faults.passing():
            return self._real.exists(path)

    def names(self, directory: Path) -> list[str]:
        with self._faults.passing():
            return self._real.names(directory)

    def make_dir(self, directory: Path) -> None:
        with self._faults.passing():
            made = [path for path in (directory, *directory.parents) if not self._real.exists(path)]
            self._real.make_dir(directory)
            self._fresh_directories.update(made)

    def rename(self, source: Path, target: Path) -> None:
        with self._faults.operation("rename", source, f"-> {target.name}"):
            if source.is_dir():
                self._rename_directory(source, target)
                return
            node = self._node(source)
            replaced = self._node(target) if self._real.exists(target) else None
            self._real.rename(source, target)
            self._names.renamed(source, target, node, replaced)
            if replaced is not None:
                self._unname(target, replaced)
            self._nodes[target] = self._nodes.pop(source)
            self._spaces[target] = self._spaces.pop(source)
            node.path = target

    def remove(self, path: Path) -> None:
        with self._faults.passing():
            if self._real.exists(path):
                with self._faults.operation("remove", path, is_write=True):
                    self._remove_all([path], settled_by=path.parent)
                    self._real.remove(path)

    def remove_tree(self, directory: Path) -> None:
        with self._faults.passing():
            if not self._real.exists(directory):
                return
            with self._faults.operation("remove_tree", directory, is_write=True):
                self._remove_all(self._files_below(directory), settled_by=directory.parent)
                self._names.removed_tree(directory)
                self._real.remove_tree(directory)
                self._fresh_directories = {
                    fresh for fresh in self._fresh_directories if not fresh.is_relative_to(directory)
                }

    def sync_dir(self, directory: Path) -> None:
        with self._faults.operation("sync_dir", directory):
            self._names.settle(directory)
            self._fresh_directories = {
                fresh
                for fresh in self._fresh_directories
                if fresh.parent != directory and not directory.is_relative_to(fresh)
            }
            for node in (*self._nodes.values(), *self._nameless):
                self._let_go_if_idle(node)

    def allocated_bytes(self, path: Path) -> int:
        with self._faults.passing():
            files = self._files_below(path) if path.is_dir() else [path] if self._real.exists(path) else []
            return sum(self._space(file).total_bytes() for file in files)

    def free_bytes(self, path: Path) -> int:
        with self._faults.passing():
            return self._real.free_bytes(path) if self.capacity_bytes is None else self._free_bytes()

    def total_bytes(self, path: Path) -> int:
        with self._faults.passing():
            return self._real.total_bytes(path) if self.capacity_bytes is None else self.capacity_bytes

    def place_of(self, path: Path) -> Place | None:
        with self._faults.passing():
            return self._real.place_of(path)

    def lock(self, path: Path, note: str) -> LockHandle:
        with self._faults.passing():
            held = self._real.lock(path, note)
            self._locks.append(held)
            return held

    def sorted_keys(self, directory: Path, key_bytes: int, *, read_only: bool = False) -> SortedKeys:
        with self._faults.passing():
            self._key_directories.add(directory)
            keys = FaultyKeys(directory, key_bytes, self._faults, self._free_bytes, read_only=read_only)
            self._keys = [*(opened for opened in self._keys if opened.is_open), keys]
            return keys

    # Files and their names

    def _node(self, path: Path, *, create: bool = False) -> FileNode:
        node = self._nodes.get(path)
        if node is None:
            real = self._real.open(path, create=create)
            node = self._nodes[path] = FileNode(path, real, self._space(path))
        return node

    def _space(self, path: Path) -> FileSpace:
        space = self._spaces.get(path)
        if space is None:
            space = self._spaces[path] = FileSpace(self._real.allocated_bytes(path))
        return space

    def _free_bytes(self) -> int:
        if self.capacity_bytes is None:
            return _BOUNDLESS_BYTES
        return self.capacity_bytes - sum(space.total_bytes() for space in self._spaces.values())

    def _files_below(self, directory: Path) -> list[Path]:
        """The files in a directory that are not RocksDB's."""
        own = self._key_directories
        files = (path for path in directory.rglob("*") if own.isdisjoint(path.parents) and path.is_file())
        return sorted(files)

    def _remove_all(self, paths: Iterable[Path], *, settled_by: Path) -> None:
        for path in paths:
            node = self._node(path)
            self._names.removed(path, node, settled_by)
            self._unname(path, node)

    def _unname(self, path: Path, node: FileNode) -> None:
        node.path = None
        self._nameless.append(node)
        del self._nodes[path]
        del self._spaces[path]

    def _rename_directory(self, source: Path, target: Path) -> None:
        moved = moved_path(source, target)
        self._real.rename(source, target)
        self._names.moved_tree(source, target)
        self._nodes = {moved(path): node for path, node in self._nodes.items()}
        self._spaces = {moved(path): space for path, space in self._spaces.items()}
        self._fresh_directories = {moved(path) for path in self._fresh_directories}
        self._key_directories = {moved(path) for path in self._key_directories}
        for path, node in self._nodes.items():
            node.path = path

    def _let_go_if_idle(self, node: FileNode) -> None:
        """Close a real file that is not open elsewhere and that a power cut could not change."""
        if node.handle_count or self._names.mentions(node):
            return
        if node.path is None:
            self._nameless = [other for other in self._nameless if other is not node]
            node.real.close()
        elif not node.unsynced:
            del self._nodes[node.path]
            node.real.close()

    # What a crash leaves

    def _take_over(self, dead: FaultyDisk) -> None:
        """After a kill the machine lives on: what was not synced then is not synced now."""
        self._nodes, dead._nodes = dead._nodes, {}
        self._nameless, dead._nameless = dead._nameless, []
        self._names, self._spaces = dead._names, dead._spaces
        self._fresh_directories = dead._fresh_directories
        for node in (*self._nodes.values(), *self._nameless):
            node.handle_count = 0

    def _lose_unsynced(self) -> None:
        random = self._faults.random
        names = self._names.cut_power(random)
        names.update(
            {path: node for path, node in self._nodes.items() if node.unsynced and path not in names}
        )
        for path in sorted(names):
            self._leave(path, names[path])
        for directory in sorted(self._fresh_directories):
            if random.random() < _DIRECTORY_LOST_CHANCE:
                self._real.remove_tree(directory)
        self._spaces = {path: space for path, space in self._spaces.items() if self._real.exists(path)}

    def _leave(self, path: Path, node: FileNode | None) -> None:
        """Make `path` lead to what a power cut left of `node`.

        Always a new file: maps that the dead process still holds keep the old one and stay readable.
        """
        if node is None:
            self._real.remove(path)
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        shadow = path.with_name(path.name + ".shadow")
        fd = os.open(shadow, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
        try:
            _copy_sparse(node.real, fd)
            node.unsynced.cut_power(fd, self._faults.random)
            size = os.fstat(fd).st_size
        finally:
            os.close(fd)
        os.replace(shadow, path)
        node.space.cut(size)
        self._spaces[path] = node.space


def _copy_sparse(source: DiskFile, target_fd: int) -> None:
    """Copy what is not zero; a preallocated file is mostly holes."""
    size = source.size()
    os.ftruncate(target_fd, size)
    for offset in range(0, size, _COPY_BYTES):
        data = source.read(offset, _COPY_BYTES)
        if data.count(0) != len(data):
            os.pwrite(target_fd, data, offset)
