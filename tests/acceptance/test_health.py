"""A served broker whose disk fails: `/healthz` reports it, the supervisor opens it again, nothing is lost."""

from __future__ import annotations

import json
import os
import urllib.error
import urllib.request
from pathlib import Path

import pytest

import tidemill
from acceptance.serving import Served, wait_until
from tidemill.broker.embedded import open_broker
from tidemill.core.errors import TidemillError

_SITE = Path(__file__).with_name("failing_disk")


class _FailingDisk:
    """Says in a file which writes of the broker fail; see `failing_disk/sitecustomize.py`."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def fail(self, what: str) -> None:
        self._path.write_text(what)

    def work(self) -> None:
        self._path.unlink()


@pytest.fixture
def disk(tmp_path, monkeypatch):
    path = tmp_path / "failing"
    monkeypatch.setenv("FAILING_DISK", str(path))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(_SITE), os.environ.get("PYTHONPATH", "")]))
    return _FailingDisk(path)


@pytest.fixture
def served(tmp_path, disk):
    served = Served(tmp_path / "data", "--flight-port", "-1")
    served.prepare("orders")
    yield served.start()
    served.stop()


def _health(served: Served) -> tuple[int, dict[str, object]]:
    """HTTP status and content of `/healthz`; 0 while nothing answers."""
    try:
        with urllib.request.urlopen(f"http://{served.endpoint}/healthz", timeout=5) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as refused:
        with refused:
            return refused.code, json.load(refused)
    except (OSError, ValueError):
        return 0, {}


def _is_tried_again(served: Served, pause: str) -> bool:
    assert served.process is not None and served.process.poll() is None, served.log()
    return f"starting it again in {pause}" in served.log()


def test_a_frame_that_cannot_be_applied_makes_the_supervisor_open_the_directory_again(served, disk):
    with tidemill.Client(served.endpoint, retry_for="60s") as client:
        client.send("orders", b"before", delay="1h")
        (old,) = served.broker_pids()
        disk.fail("index/entries")
        with tidemill.Client(served.endpoint, retry_for=0) as hasty, pytest.raises(TidemillError):
            hasty.send("orders", b"at the fault", delay="1h")
        status, said = _health(served)
        while status == 503 and said["status"] == "failed":
            assert "index/entries" in str(said["reason"])
            status, said = _health(served)
        assert status != 200, "well while it was down"
        disk.work()
        wait_until(lambda: old not in served.broker_pids() and served.is_ready(), "the broker to come back")
        client.send("orders", b"after", delay="1h")
        found = client.status()
        # What was appended and not acknowledged is in the log, and may be there after.
        assert found.pending in (2, 3)
        health = found.fields["health"]
        assert (health["state"], health["reason"]) == ("ok", "")
        assert "commit log: " in health["last_fault"] and "index/entries" in health["last_fault"]
    assert served.stop() == 0
    said = served.log()
    assert "the broker stopped: commit log: " in said and "starting it again in 200ms" in said
    with open_broker(served.directory) as broker:
        bodies = {
            broker.store.message(int(broker.store.entry(p.seq)["place"])).body for p in broker.views.pending()
        }
        assert {b"before", b"after"} <= bodies
        assert not broker.check(served.directory.with_suffix(".scratch"))


def test_a_disk_that_fails_in_an_opening_too_is_tried_again_with_longer_pauses(served, disk):
    with tidemill.Client(served.endpoint, retry_for="60s") as client:
        client.send("orders", b"before", delay="1h")
        disk.fail("index/entries")
        with tidemill.Client(served.endpoint, retry_for=0) as hasty, pytest.raises(TidemillError):
            hasty.send("orders", b"at the fault", delay="1h")
        wait_until(lambda: _is_tried_again(served, "800ms"), "the third try")
        disk.work()
        wait_until(served.is_ready, "the broker to come back")
        client.send("orders", b"after", delay="1h")
        assert client.status().fields["health"]["last_fault"].startswith("opening: ")
    assert "the broker stopped: opening: " in served.log()
    assert "check the disk and its permissions; starting it again in 400ms" in served.log()
    assert served.stop() == 0


def test_a_disk_that_fails_at_the_first_opening_ends_serve_with_the_reason(tmp_path, disk):
    served = Served(tmp_path / "data", "--flight-port", "-1")
    served.prepare("orders")
    with open_broker(served.directory) as broker:
        broker.send([tidemill.Draft("orders", b"kept", delay_ms=3_600_000)])
    disk.fail("data/")
    with pytest.raises(AssertionError, match="Input/output error; check the disk"):
        served.start()
    assert served.process is not None and served.process.wait(60) == 1
    assert "starting it again" not in served.log()


def test_a_failed_sync_ends_serve_with_the_reason(served, disk):
    disk.fail("sync")
    with tidemill.Client(served.endpoint, retry_for=0) as client, pytest.raises(TidemillError):
        client.send("orders", b"unknown")
    assert served.process is not None
    assert served.process.wait(60) == 1
    last = served.log().splitlines()[-1]
    assert last.startswith("tidemill: the broker stopped: commit log: ")
    assert "sync failed (Input/output error); check the disk" in last


def test_a_service_that_keeps_failing_turns_health_to_503_until_it_succeeds(served, disk):
    with tidemill.Client(served.endpoint) as client:
        disk.fail("timer/")
        client.send("orders", b"due soon", delay="300ms")
        wait_until(lambda: _health(served)[0] == 503, "a service that fails to show")
        _, said = _health(served)
        assert said["status"] == "failing"
        assert "timer has failed for 1" in str(said["reason"]) and "timer/" in str(said["reason"])
        client.send("orders", b"taken all the same", delay="1h")
        health = client.status().fields["health"]
        assert health["state"] == "failing" and "timer/" in health["reason"]
        disk.work()
        wait_until(lambda: _health(served)[0] == 200, "health after a success")
        (message,) = client.receive_batch("orders", "g", wait="30s")
        assert message.text == "due soon"
