"""File names created, moved or removed and not yet made durable by `sync_dir`.

The directory tree itself always shows the newest names. Beside it this module keeps the unsynced changes in
order, and for each name they touch what the disk would show without them. POSIX promises no order among
unsynced changes, so at a power cut a first part of them, or any subset, is kept; a rename is kept or lost as
a whole.

Invariant: applying all of `_changes` to `_settled` gives the names of the directory tree.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Generic, TypeVar

Node = TypeVar("Node")  # a file, apart from its names


@dataclass
class _NameChange(Generic[Node]):
    node: Node
    removed: Path | None
    added: Path | None
    settled_by: Path  # the directory whose sync brings it to the disk

    @property
    def paths(self) -> set[Path]:
        return {path for path in (self.removed, self.added) if path is not None}

    def apply(self, names: dict[Path, Node | None]) -> None:
        if self.removed is not None:
            names[self.removed] = None
        if self.added is not None:
            # A file has one name, also when the change that brought it here was lost.
            for path in [path for path, node in names.items() if node is self.node]:
                names[path] = None
            names[self.added] = self.node


def moved_path(source: Path, target: Path) -> Callable[[Path], Path]:
    """What becomes of a path when the directory `source` gets the name `target`."""
    return lambda path: target / path.relative_to(source) if path.is_relative_to(source) else path


class NameJournal(Generic[Node]):
    """The unsettled changes of names, in order."""

    def __init__(self) -> None:
        self._changes: list[_NameChange[Node]] = []
        self._settled: dict[Path, Node | None] = {}

    def created(self, path: Path, node: Node) -> None:
        self._settled.setdefault(path, None)
        self._changes.append(_NameChange(node, None, path, path.parent))

    def removed(self, path: Path, node: Node, settled_by: Path) -> None:
        self._settled.setdefault(path, node)
        self._changes.append(_NameChange(node, path, None, settled_by))

    def renamed(self, source: Path, target: Path, node: Node, replaced: Node | None) -> None:
        self._settled.setdefault(source, node)
        self._settled.setdefault(target, replaced)
        self._changes.append(_NameChange(node, source, target, target.parent))

    def mentions(self, node: Node) -> bool:
        return any(change.node is node for change in self._changes) or any(
            held is node for held in self._settled.values()
        )

    def settle(self, directory: Path) -> None:
        """`directory` was synced: its changes stand, and with them all earlier ones of the same names."""
        settled_paths: set[Path] = set()
        settled: list[_NameChange[Node]] = []
        waiting: list[_NameChange[Node]] = []
        for change in reversed(self._changes):
            if change.settled_by == directory or change.paths & settled_paths:
                settled_paths |= change.paths
                settled.append(change)
            else:
                waiting.append(change)
        for change in reversed(settled):
            change.apply(self._settled)
        self._changes = waiting[::-1]
        wanted = {path for change in self._changes for path in change.paths}
        self._settled = {path: node for path, node in self._settled.items() if path in wanted}

    def moved_tree(self, source: Path, target: Path) -> None:
        """A directory got another name: the same changes, under the new paths."""
        moved = moved_path(source, target)
        self._settled = {moved(path): node for path, node in self._settled.items()}
        for change in self._changes:
            change.removed = None if change.removed is None else moved(change.removed)
            change.added = None if change.added is None else moved(change.added)
            change.settled_by = moved(change.settled_by)

    def removed_tree(self, directory: Path) -> None:
        """A directory is gone: only its parent can settle what happened in it."""
        for change in self._changes:
            if change.settled_by.is_relative_to(directory):
                change.settled_by = directory.parent

    def cut_power(self, random: Random) -> dict[Path, Node | None]:
        """The file each touched name leads to after a power cut, or None where there is none."""
        names = dict(self._settled)
        for change in _kept(self._changes, random):
            change.apply(names)
        return names


def _kept(changes: list[_NameChange[Node]], random: Random) -> list[_NameChange[Node]]:
    fate = random.random()
    if fate < 0.2:
        return changes
    if fate < 0.4:
        return []
    if fate < 0.7:
        return changes[: random.randint(0, len(changes))]
    return [change for change in changes if random.random() < 0.5]
