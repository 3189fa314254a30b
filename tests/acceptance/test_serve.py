"""`tidemill serve` as a process: it opens, says what is pending, stops in order and leaves no orphan."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

import tidemill
from acceptance.serving import Served, wait_until
from tidemill.broker.embedded import open_broker
from tidemill.core.errors import RequestError
from tidemill.core.processes import is_alive


@pytest.fixture
def served(tmp_path):
    served = Served(tmp_path / "data")
    yield served
    served.stop()


def test_a_simulated_clock_keeps_its_time_over_a_killed_broker_and_a_restart(tmp_path):
    served = Served(tmp_path / "data", "--clock", "simulated", "--flight-port", "-1")
    try:
        with tidemill.Client(served.start().endpoint, retry_for="60s") as client:
            now_ms = client.admin.advance("3d")
            served.kill_broker()
            assert client.status().now_ms == now_ms
            served.stop()
            served.start()
            assert client.status().now_ms == now_ms
            with pytest.raises(RequestError, match="cannot be moved back"):
                client.admin.advance(to=(now_ms - 1) / 1_000)
    finally:
        served.stop()


def test_it_says_what_is_pending_when_it_stops(served):
    with open_broker(served.directory) as broker:
        broker.send([tidemill.Draft("orders", b"later", delay_ms=3_600_000)])
    served.start()
    assert served.stop() == 0
    assert "serves on" in served.log()
    assert "1 message is pending, due at" in served.log()


def test_a_killed_broker_is_started_again(served):
    served.start()
    (old,) = served.broker_pids()
    served.kill_broker()
    wait_until(lambda: old not in served.broker_pids() and served.is_ready(), "the broker to come back")
    assert served.stop() == 0


def test_a_broker_that_is_killed_while_it_starts_is_started_again(served):
    served.start()
    for _ in range(3):  # the second and third just after it has begun
        before = served.broker_pids()
        served.kill_broker()
        wait_until(lambda before=before: set(served.broker_pids()) - set(before), "another broker process")
    wait_until(served.is_ready, "the broker to come back")
    assert served.stop() == 0


def test_a_broker_whose_directory_went_is_started_again_when_it_is_back_and_no_other_is_begun(served):
    with open_broker(served.directory) as broker:
        broker.send([tidemill.Draft("orders", b"later", delay_ms=3_600_000)])
    served.start()
    away = served.directory.with_suffix(".away")
    served.directory.rename(away)
    served.kill_broker()
    wait_until(lambda: "waiting for it" in served.log(), "a word that it is away")
    assert not served.directory.exists()
    away.rename(served.directory)
    wait_until(served.is_ready, "the broker to come back")
    assert served.stop() == 0
    assert "1 message is pending" in served.log()


def test_impatient_signals_change_nothing_about_an_orderly_stop(served):
    process = served.start().process

    def has_ended() -> bool:
        for number in (signal.SIGTERM, signal.SIGINT):
            if process.poll() is None:
                process.send_signal(number)
        return process.poll() is not None

    wait_until(has_ended, "the end")
    assert process.returncode == 0
    assert "tidemill stopped" in served.log() and "Traceback" not in served.log()


def test_no_orphan_survives_the_supervisor(served):
    served.start()
    (pid,) = served.broker_pids()
    served.kill_supervisor()
    wait_until(lambda: not is_alive(pid), "the broker process to end")
    with open_broker(served.directory):
        pass  # and it let go of the directory


def test_a_directory_in_use_is_said_in_one_line(served):
    with open_broker(served.directory):
        result = _serve("--data", str(served.directory), "--port", str(served.port))
    assert result.returncode == 1
    assert "in use" in result.stderr and result.stderr.count("\n") == 1
    assert result.stdout == ""


def test_a_directory_that_is_served_names_the_process_to_stop(served):
    supervisor = served.start().process
    result = _serve("--data", str(served.directory), "--port", "0")
    assert f"is in use by process {supervisor.pid}; stop it first" in result.stderr


def test_a_file_for_a_data_directory_is_said_in_one_line(tmp_path):
    (tmp_path / "file").write_text("")
    for data in (tmp_path / "file", tmp_path / "file" / "below"):
        result = _serve("--data", str(data), "--port", "0", "--flight-port", "-1", "--pipeline", "embedded")
        assert (result.returncode, result.stdout) == (1, "")
        assert f"{data} is, or lies below, a file; name a directory" in result.stderr


def test_a_directory_with_other_files_is_refused_before_anything_is_written(tmp_path):
    (tmp_path / "README.md").write_text("a project")
    result = _serve("--data", str(tmp_path), "--port", "0", "--tls-port", "0")
    assert (result.returncode, result.stdout) == (1, "")
    assert f"{tmp_path} is not empty and not a data directory: it holds README.md" in result.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["README.md"]


def test_a_port_in_use_is_said_in_one_line(served, tmp_path):
    served.start()
    result = _serve("--data", str(tmp_path / "other"), "--port", str(served.port))
    assert result.returncode == 1
    assert "choose another --port" in result.stderr


@pytest.mark.parametrize("host", ["no-such-host.invalid", "192.0.2.1"])  # neither is ever of this machine
def test_a_host_that_is_not_this_machine_is_said_in_one_line(tmp_path, host):
    result = _serve("--data", str(tmp_path / "data"), "--host", host, "--port", "0", "--insecure")
    assert result.returncode == 1
    assert f"cannot listen on {host}:" in result.stderr
    assert "choose another --host" in result.stderr and "--port" not in result.stderr


def test_an_address_that_others_can_reach_is_refused(tmp_path):
    result = _serve("--data", str(tmp_path / "data"), "--host", "0.0.0.0")
    assert result.returncode == 2
    assert "--insecure" in result.stderr


def _serve(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tidemill.cli.main", "serve", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
