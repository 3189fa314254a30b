"""Where backups may be written."""

from __future__ import annotations

from pathlib import Path

import pytest

from tidemill.core.errors import RequestError
from tidemill.server.http.http_admin import BackupPlace
from tidemill.server.process.serve_plan import ServePlan


def test_with_a_place_set_aside_nothing_is_written_outside_it(tmp_path: Path) -> None:
    root = tmp_path / "backups"
    root.mkdir()
    (root / "link").symlink_to(tmp_path)
    place = BackupPlace(root, is_reachable=True)
    assert place.target("monday") == root / "monday"
    assert place.target(str(root / "a" / "b")) == root / "a" / "b"
    for outside in ("..", "../x", "/etc/x", ".", "", str(root), "link/x", f"{root}-not", "a/../../x"):
        with pytest.raises(RequestError, match="go below"):
            place.target(outside)
    with pytest.raises(RequestError, match="NUL"):
        place.target("a\0b")


def test_without_one_only_a_broker_that_others_cannot_reach_writes_any(tmp_path: Path) -> None:
    at_home = BackupPlace.of(ServePlan("data"))
    assert at_home.target(str(tmp_path / "x")) == tmp_path / "x"
    with pytest.raises(RequestError, match="--backup-dir"):
        BackupPlace.of(ServePlan("data", host="0.0.0.0")).target(str(tmp_path / "x"))
    aside = BackupPlace.of(ServePlan("data", host="0.0.0.0", backup_dir=str(tmp_path)))
    assert aside.target("x") == tmp_path / "x"
