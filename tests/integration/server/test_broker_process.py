"""The broker process: what it refuses to open, and what it says when it cannot close."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import tidemill
from tidemill.broker.embedded import open_broker
from tidemill.core.errors import StorageError
from tidemill.server.process.serve_plan import ServePlan


def _module(plan: ServePlan, monkeypatch: pytest.MonkeyPatch) -> Any:
    for name, value in plan.as_variable().items():
        monkeypatch.setenv(name, value)
    return import_module("tidemill.server.process.broker_process")


def test_one_that_is_started_again_opens_no_other_directory_and_makes_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = ServePlan(str(tmp_path / "data"), broker_before="AB12", is_again=True)
    process = _module(plan, monkeypatch).BrokerProcess
    with pytest.raises(StorageError, match="is not there"):
        process(plan)._open_broker()
    assert not (tmp_path / "data").exists()
    with open_broker(tmp_path / "data") as other:
        found = other.id
    with pytest.raises(StorageError, match=f"broker {found} now, not of AB12"):
        process(plan)._open_broker()
    process(replace(plan, broker_before=found))._open_broker().close()


def test_one_that_cannot_close_because_its_directory_went_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan, said = ServePlan(str(tmp_path / "data")), {}
    module = _module(plan, monkeypatch)
    monkeypatch.setattr(module, "_report", lambda what, **facts: said.update({what: facts}))
    process = module.BrokerProcess(plan)
    broker = process._open_broker()
    broker.send([tidemill.Draft("orders", b"later", delay_ms=3_600_000)])
    (tmp_path / "data").rename(tmp_path / "elsewhere")

    async def drained(_: float) -> None:
        pass

    process.app.opened = SimpleNamespace(broker=broker, gateway=SimpleNamespace(drain=drained))
    asyncio.run(process.stop())
    assert "did not shut down cleanly" in said["failed"]["message"] and "closed" not in said
    with open_broker(tmp_path / "elsewhere") as again:
        assert len(again.views.pending()) == 1
