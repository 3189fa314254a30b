"""`tidemill serve` on hypercorn, where Envoy cannot run: the same broker, answers and restarts."""

from __future__ import annotations

import shutil
import signal
import ssl
import subprocess
import sys
import urllib.request
from pathlib import Path

import grpc
import pytest
from rocketmq import (
    ClientConfiguration,
    Credentials,
    FilterExpression,
    Message,
    Producer,
    SimpleConsumer,
)

import tidemill
from acceptance.official_client import require_tools
from acceptance.official_python import start
from acceptance.serving import Served, free_port, wait_until
from tidemill.core.processes import command_line, is_alive
from tidemill.server.grpc.protocol import SERVICE
from tidemill.server.security.certificate import own_certificate

_GROUP = "workers"


class _OnHypercorn(Served):
    """A serve that chose hypercorn by itself, with a TLS port."""

    def __init__(self, directory: Path) -> None:
        require_tools("openssl")
        self.cert, self.key = (directory.with_name(name) for name in ("cert.pem", "key.pem"))
        self.certify()
        self.tls_port = free_port()
        tls = ("--tls-port", self.tls_port, "--tls-cert", self.cert, "--tls-key", self.key)
        super().__init__(directory, *map(str, tls), "--flight-port", "0")
        self.program = (str(Path(__file__).with_name("without_shared_python_serve.py")),)

    def certify(self) -> None:
        """Put another certificate in place."""
        made = self.cert.with_name("made")
        for source, target in zip(own_certificate(made, "127.0.0.1"), (self.cert, self.key), strict=True):
            shutil.copy(source, target)
        shutil.rmtree(made)


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    served = _OnHypercorn(tmp_path_factory.mktemp("other") / "data")
    served.prepare("orders", "payments", "killed", "tls")
    yield served.start()
    assert served.stop() == 0
    assert "tidemill stopped" in served.log()


def _get(url: str, **options) -> tuple[int, str, bytes]:
    with urllib.request.urlopen(url, timeout=10, **options) as answer:
        return answer.status, answer.headers["content-type"], answer.read()


def test_it_says_in_one_line_why_and_which_package_to_install(served):
    package = "libpython{}.{}".format(*sys.version_info)
    assert [line for line in served.log().splitlines() if "hypercorn" in line] == [
        f"tidemill: Envoy needs Python's shared library; install it (apt-get install {package}). "
        "Continuing with hypercorn, which is slower."
    ]
    assert "tidemill.server.process.hypercorn_process" in command_line(served.broker_pids()[0])


def test_envoy_that_is_asked_for_is_refused_with_what_to_do(tmp_path):
    program = Path(__file__).with_name("without_shared_python_serve.py")
    command = [sys.executable, program, "serve", "--data", tmp_path / "data", "--server", "envoy"]
    said = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert said.returncode == 1
    assert said.stderr.count("\n") == 1
    assert "apt-get install libpython" in said.stderr
    assert "--server hypercorn" in said.stderr
    assert not (tmp_path / "data").exists()


def test_health_and_dashboard(served):
    status, content_type, body = _get(f"http://{served.endpoint}/healthz")
    assert (status, content_type) == (200, "application/json")
    assert b'"open"' in body
    status, content_type, body = _get(f"http://{served.endpoint}/")
    assert status == 200 and content_type.startswith("text/html") and b"<script" in body
    assert b"tidemill_pending" in _get(f"http://{served.endpoint}/metrics")[2]


def test_our_client_over_http(served):
    with tidemill.Client(served.endpoint) as client:
        receipt = client.send("orders", b"late", delay="1h")
        assert str(client.cancel(receipt.handle)) == "cancelled"
        client.send_many([tidemill.Draft("orders", b"x" * 3_000_000)] * 4)
        client.send("orders", b"now", delay="50ms")
        bodies = []
        for message in client.receive("orders", group=_GROUP, wait="10s", stop_when_idle=True):
            bodies.append(message.body)
            if len(bodies) == 5:
                break
        assert sorted(map(len, bodies)) == [3, *[3_000_000] * 4]


def test_the_official_client(served):
    configuration = ClientConfiguration(served.endpoint, Credentials())
    producer = Producer(configuration, ("payments",))
    consumer = SimpleConsumer(configuration, _GROUP, {"payments": FilterExpression()})
    start(producer)
    start(consumer)
    try:
        message = Message()
        message.topic, message.body = "payments", b"paid"
        assert producer.send(message).message_id
        (found,) = consumer.receive(1, 30)
        assert found.body == b"paid"
        consumer.ack(found)
    finally:
        consumer.shutdown()
        producer.shutdown()


def test_what_grpc_does_not_know_is_refused_with_a_status(served):
    with grpc.insecure_channel(served.endpoint) as channel:
        with pytest.raises(grpc.RpcError) as refused:
            channel.unary_unary(SERVICE + "PullMessage")(b"", timeout=10)
    assert refused.value.code() is grpc.StatusCode.UNIMPLEMENTED


def test_a_broker_that_is_killed_is_started_again_on_the_same_ports(served):
    with tidemill.Client(served.endpoint) as client:
        client.send("killed", b"kept", delay="1s")
        (before,) = served.broker_pids()
        served.kill_broker()
        wait_until(lambda: not is_alive(before) and served.is_ready(), "the next broker process")
        assert served.broker_pids() != [before]
        for message in client.receive("killed", group=_GROUP, wait="20s", stop_when_idle=True):
            assert message.body == b"kept"
            break
    assert "killed by signal 9" in served.log()
    context = ssl.create_default_context(cafile=str(served.cert))
    assert _get(f"https://127.0.0.1:{served.tls_port}/healthz", context=context)[0] == 200


def test_a_certificate_that_is_replaced_is_used_without_a_restart(served):
    url, (pid,) = f"https://127.0.0.1:{served.tls_port}", served.broker_pids()
    with tidemill.Client(url, ca=served.cert) as client:
        client.send("tls", b"before", delay="1h")
    before = ssl.get_server_certificate(("127.0.0.1", served.tls_port))
    served.certify()
    wait_until(lambda: ssl.get_server_certificate(("127.0.0.1", served.tls_port)) != before, "the new one")
    context = ssl.create_default_context(cafile=str(served.cert))
    assert _get(f"{url}/healthz", context=context)[0] == 200
    assert served.broker_pids() == [pid]


def test_stopped_with_a_call_under_way_it_stops_in_order(tmp_path):
    served = Served(tmp_path / "data", "--server", "hypercorn", "--flight-port", "-1")
    served.prepare("orders")
    served.start()
    configuration = ClientConfiguration(served.endpoint, Credentials())
    consumer = SimpleConsumer(configuration, _GROUP, {"orders": FilterExpression()})
    start(consumer)  # holds a telemetry stream
    try:
        served.process.send_signal(signal.SIGTERM)
        assert served.process.wait(15) == 0
        assert "tidemill stopped" in served.log()
        assert "Traceback" not in served.log()
    finally:
        consumer.shutdown()
