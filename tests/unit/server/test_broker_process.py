"""The broker process: what it refuses to open."""

from __future__ import annotations

from dataclasses import replace
from importlib import import_module
from pathlib import Path

import pytest

import tidemill
from tidemill.core.errors import StorageError
from tidemill.server.serve_plan import ServePlan


def test_one_that_is_started_again_opens_no_other_directory_and_makes_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = ServePlan(str(tmp_path / "data"), broker_before="AB12", is_again=True)
    for name, value in plan.as_variable().items():
        monkeypatch.setenv(name, value)
    process = import_module("tidemill.server.broker_process").BrokerProcess
    with pytest.raises(StorageError, match="is not there"):
        process(plan)._open_broker()
    assert not (tmp_path / "data").exists()
    with tidemill.open(tmp_path / "data") as other:
        found = other.id
    with pytest.raises(StorageError, match=f"broker {found} by now, not of AB12"):
        process(plan)._open_broker()
    process(replace(plan, broker_before=found))._open_broker().close()
