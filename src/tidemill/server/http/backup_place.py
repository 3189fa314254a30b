"""Where a caller may have a backup written: a backup creates files as the broker's own user.

Owns that decision. With `--backup-dir` nothing is written outside that directory, whatever dots or links a
name contains. Without it, any new directory is allowed while only this machine can call; otherwise none.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tidemill.core.errors import RequestError
from tidemill.server.process.serve_plan import ServePlan

LOOPBACK = frozenset(("127.0.0.1", "::1", "localhost"))


@dataclass(frozen=True, slots=True)
class BackupPlace:
    """The directory set aside, if there is one, and whether others than this machine can call."""

    root: Path | None = None
    is_reachable: bool = False

    def target(self, asked: str) -> Path:
        """The requested directory; `RequestError` where it is not allowed."""
        if "\0" in asked:
            raise RequestError("the name of a directory has no NUL character; name another")
        if self.root is None:
            if self.is_reachable:
                raise RequestError(
                    "this broker writes no backups for callers from elsewhere; "
                    "serve with --backup-dir DIR, and name a directory within it"
                )
            return Path(asked)
        root = self.root.resolve()
        target = (root / asked).resolve()  # an absolute name stands for itself
        if root not in target.parents:
            raise RequestError(f"backups go below {root}; name a directory there")
        return target


def backup_place_of(plan: ServePlan) -> BackupPlace:
    """Where backups go by a plan."""
    return BackupPlace(Path(plan.backup_dir) if plan.backup_dir else None, plan.host not in LOOPBACK)
