"""Who gets in, and how: signatures, tokens and TLS against a real `tidemill serve`."""

from __future__ import annotations

import asyncio
import hmac
import json
import os
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import grpc
import pytest
from rocketmq import ClientConfiguration, Credentials, FilterExpression, Message, Producer, SimpleConsumer

import tidemill
from acceptance.official_python import start
from acceptance.secured import BLIND, BOSS, PERMISSIONS, SECRET, TOKEN, Secured
from acceptance.serving import Served, wait_until
from tidemill.cli import main
from tidemill.core.clock import SystemClock
from tidemill.core.durations import format_time
from tidemill.core.errors import ForbiddenError, UnauthorizedError, UnreachableError
from tidemill.server.grpc.protocol import SERVICE, Code, definition, service

_now_ms = SystemClock().now_ms
_FLAGS = ("--pipeline", "embedded", "--flight-port", "-1")


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    served = Secured(tmp_path_factory.mktemp("secured") / "data", *_FLAGS)
    served.prepare("orders", "bills", "kept")
    yield served.start()
    served.stop()


def _stamp(ms: int) -> str:
    return format_time(ms)[:19].replace("-", "").replace(":", "") + "Z"


def _signed(*, secret: str = SECRET, key: str = "shop-ak", at_ms: int | None = None) -> list[tuple[str, str]]:
    stamp = _stamp(_now_ms() if at_ms is None else at_ms)
    digest = hmac.digest(secret.encode(), stamp.encode(), "sha1").hex()
    header = f"MQv2-HMAC-SHA1 Credential={key}, SignedHeaders=x-mq-date-time, Signature={digest}"
    return [("authorization", header), ("x-mq-date-time", stamp), ("x-mq-client-id", "test")]


def _call(endpoint: str, name: str, request: Any, metadata: Any) -> Any:
    with grpc.insecure_channel(endpoint) as channel:
        method = channel.unary_unary(
            SERVICE + name,
            request_serializer=type(request).SerializeToString,
            response_deserializer=getattr(service, f"{name}Response").FromString,
        )
        return method(request, timeout=10, metadata=metadata)


def _send_request(topic: str = "orders") -> Any:
    message = definition.Message(body=b"x")
    message.topic.name = topic
    message.system_properties.message_id = f"id-{_now_ms()}"
    return service.SendMessageRequest(messages=[message])


def _status(served: Served, metadata: Any, topic: str = "orders") -> Any:
    return _call(served.endpoint, "SendMessage", _send_request(topic), metadata).status


# -- signatures -----------------------------------------------------------------------------------


def _message(topic: str = "orders") -> Message:
    message = Message()
    message.topic, message.body = topic, b"signed"
    return message


def test_the_official_client_with_its_keys_is_served(served):
    configuration = ClientConfiguration(served.endpoint, Credentials("shop-ak", SECRET))
    producer = Producer(configuration, ("orders",))
    consumer = SimpleConsumer(configuration, "workers", {"orders": FilterExpression()}, await_duration=5)
    start(producer)
    start(consumer)
    try:
        sent = producer.send(_message())
        found: set[str] = set()
        while sent.message_id not in found:
            for message in consumer.receive(8, 30):
                consumer.ack(message)
                found.add(message.message_id)
    finally:
        consumer.shutdown()
        producer.shutdown()


@pytest.mark.parametrize("keys", [("shop-ak", "wrong-secret-key"), ("nobody", SECRET), ()])
def test_the_official_client_with_wrong_keys_is_refused(served, keys, caplog):
    producer = Producer(ClientConfiguration(served.endpoint, Credentials(*keys)), ())
    start(producer)
    try:
        # The client says only that it found no route; why is in its log.
        with pytest.raises(Exception, match="route"):
            producer.send(_message())
    finally:
        producer.shutdown()
    assert "40100, UNAUTHORIZED" in caplog.text


def test_a_good_signature_is_good(served):
    assert _status(served, _signed()).code == Code.OK


@pytest.mark.parametrize(
    ("given", "text"),
    [({"secret": "wrong-secret-key"}, "signature is wrong"), ({"at_ms": 1_700_000_000_000}, "has expired")],
)
def test_wrong_and_expired_signatures_have_a_code_and_a_text(served, given, text):
    status = _status(served, _signed(**given))
    assert status.code == Code.UNAUTHORIZED
    assert text in status.message
    assert _status(served, []).code == Code.UNAUTHORIZED


def test_another_topic_or_group_is_forbidden(served):
    status = _status(served, _signed(), "bills")
    assert status.code == Code.FORBIDDEN
    assert "'shop' may not send on topic 'bills'" in status.message
    for name, request in (
        ("QueryRoute", service.QueryRouteRequest(topic={"name": "bills"})),
        (
            "QueryAssignment",
            service.QueryAssignmentRequest(topic={"name": "orders"}, group={"name": "spies"}),
        ),
        ("RecallMessage", service.RecallMessageRequest(topic={"name": "bills"}, recall_handle="x")),
        ("EndTransaction", service.EndTransactionRequest(topic={"name": "bills"}, transaction_id="x")),
    ):
        assert _call(served.endpoint, name, request, _signed()).status.code == Code.FORBIDDEN


@pytest.mark.parametrize("name", ["ReceiveMessage", "Telemetry"])
def test_streams_are_refused_with_a_status_and_end(served, name):
    answer = getattr(service, "TelemetryCommand" if name == "Telemetry" else "ReceiveMessageResponse")
    with grpc.insecure_channel(served.endpoint) as channel:
        method = channel.stream_stream(SERVICE + name, response_deserializer=answer.FromString)
        (said,) = list(method(iter([b""]), timeout=10, metadata=_signed(secret="wrong-secret-key")))
    assert said.status.code == Code.UNAUTHORIZED


def test_a_stream_for_a_group_that_is_not_allowed_is_forbidden(served):
    request = service.ReceiveMessageRequest(batch_size=1, group={"name": "spies"})
    request.message_queue.topic.name = "orders"
    with grpc.insecure_channel(served.endpoint) as channel:
        method = channel.unary_stream(
            SERVICE + "ReceiveMessage", response_deserializer=service.ReceiveMessageResponse.FromString
        )
        said = next(method(request.SerializeToString(), timeout=10, metadata=_signed()))
    assert said.status.code == Code.FORBIDDEN


def _poll(served: Served, metadata: Any) -> list[str]:
    """What a push consumer gets at once."""
    request = service.ReceiveMessageRequest(batch_size=8, auto_renew=True, group={"name": "workers"})
    request.message_queue.topic.name = "kept"
    request.long_polling_timeout.nanos = 1_000_000
    with grpc.insecure_channel(served.endpoint) as channel:
        method = channel.unary_stream(
            SERVICE + "ReceiveMessage", response_deserializer=service.ReceiveMessageResponse.FromString
        )
        said = list(method(request.SerializeToString(), timeout=10, metadata=metadata))
    return [one.message.system_properties.message_id for one in said if one.HasField("message")]


def test_a_user_cannot_give_back_what_another_holds_by_taking_its_name(served):
    assert _status(served, _signed(), "kept").code == Code.OK
    assert len(_poll(served, _signed())) == 1
    goodbye = service.NotifyClientTerminationRequest(group={"name": "workers"})
    thief = _signed(key="neighbour-ak")
    assert _call(served.endpoint, "NotifyClientTermination", goodbye, thief).status.code == Code.OK
    assert _poll(served, thief) == []
    assert _call(served.endpoint, "NotifyClientTermination", goodbye, _signed()).status.code == Code.OK
    assert len(_poll(served, thief)) == 1


# -- tokens and TLS -------------------------------------------------------------------------------


def _page(url: str, token: str = "") -> int:
    request = urllib.request.Request(url, headers={"authorization": f"Bearer {token}"} if token else {})
    try:
        with urllib.request.urlopen(request, timeout=5) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        with error:
            return int(error.code)


def test_only_health_and_an_empty_page_are_open_without_a_token(served):
    base = f"http://{served.endpoint}"
    assert _page(f"{base}/healthz") == 200
    assert _page(f"{base}/") == 200  # the dashboard's empty page; what it shows it asks for with a token
    for path in ("/metrics", "/v1/status", "/docs"):
        assert _page(base + path) == 401
        assert _page(base + path, "wrong-token-1") == 401
    assert _page(f"{base}/metrics", TOKEN) == 200


@pytest.mark.parametrize("way", ["plain", "ca", "insecure"])
def test_our_client_works_over_each_way_in(served, way):
    endpoint = served.endpoint if way == "plain" else f"https://{served.tls_endpoint}"
    options: dict[str, Any] = {"ca": {"ca": served.ca}, "insecure": {"insecure": True}}.get(way, {})
    with tidemill.Client(endpoint, token=TOKEN, **options) as client:
        client.send("orders", b"in the dark", delay="1h", key=way)
        with pytest.raises(ForbiddenError, match="bills"):
            client.send("bills", b"not mine")
        assert client.cancel_where("orders", key=way) == 1
    with (
        tidemill.Client(endpoint, token="wrong-token-1", **options) as client,
        pytest.raises(UnauthorizedError),
    ):
        client.send("orders", b"x")


def test_our_async_client_works_over_tls(served):
    async def run() -> None:
        async with tidemill.AsyncClient(
            f"https://{served.tls_endpoint}", token=TOKEN, ca=served.ca
        ) as client:
            await client.send("orders", b"x", delay="1h")

    asyncio.run(run())


def test_a_certificate_of_an_unknown_authority_is_refused_at_once(served):
    with (
        tidemill.Client(f"https://{served.tls_endpoint}", token=TOKEN, retry_for="1h") as client,
        pytest.raises(UnreachableError, match=r"name a certificate to trust"),
    ):
        client.send("orders", b"x")


_OFFICIAL_OVER_TLS = """
import sys
from rocketmq import ClientConfiguration, Credentials, Message, Producer
configuration = ClientConfiguration(sys.argv[1], Credentials("shop-ak", sys.argv[2]))
producer = Producer(configuration, ("orders",), tls_enable=True)
producer.startup()
message = Message()
message.topic, message.body = "orders", b"over TLS"
print("sent", producer.send(message).message_id)
producer.shutdown()
"""


def test_the_official_client_works_over_tls(served):
    environment = {**os.environ, "GRPC_DEFAULT_SSL_ROOTS_FILE_PATH": str(served.ca)}
    command = [sys.executable, "-c", _OFFICIAL_OVER_TLS, served.tls_endpoint, SECRET]
    result = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=30, check=False)
    assert "sent" in result.stdout, result.stderr[-2000:]


def test_the_command_line_takes_token_and_certificate(served):
    environment = {**os.environ, "TIDEMILL_TOKEN": BOSS, "TIDEMILL_CA": str(served.ca)}
    command = [sys.executable, "-m", "tidemill.cli.main", "status", "--json"]
    command += ["--endpoint", f"https://{served.tls_endpoint}"]
    result = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=30, check=False)
    assert json.loads(result.stdout)["disk"]["is_low"] in (False, True), result.stderr


def test_the_key_is_for_the_broker_alone_and_kept(served):
    key = served.ca.with_name("key.pem")
    assert key.stat().st_mode & 0o077 == 0
    before = served.ca.read_bytes(), key.read_bytes()
    served.stop()
    served.start()
    assert (served.ca.read_bytes(), key.read_bytes()) == before


# -- the file -------------------------------------------------------------------------------------


def test_the_file_is_read_again_and_a_broken_one_is_not(served):
    base = f"http://{served.endpoint}"

    def works(token: str) -> bool:
        return _page(f"{base}/v1/topics", token) == 200

    try:
        served.permissions.write_text(PERMISSIONS.replace(BOSS, "another-token-1"))
        wait_until(lambda: works("another-token-1"), "the new token", 10)
        assert not works(BOSS)
        served.permissions.write_text(f'[users.x]\ntoken = "{BOSS}')
        wait_until(lambda: works("another-token-1") and "stay as they were" in served.log(), "the line", 10)
        assert works("another-token-1")
        assert served.log().count("stay as they were") == 1
        (pid,) = served.broker_pids()
        served.kill_broker()
        wait_until(lambda: served.broker_pids() not in ([], [pid]) and served.is_ready(), "the broker again")
        assert not works("another-token-1") and not works(BOSS)
    finally:
        served.permissions.write_text(PERMISSIONS)
    wait_until(lambda: works(BOSS), "the old file", 10)


def test_no_secret_reaches_a_log_or_a_command_line(served):
    key = served.ca.with_name("key.pem").read_text().splitlines()[1]
    (pid,) = served.broker_pids()
    assert served.process is not None
    texts = [served.log()]
    for process in (pid, served.process.pid):
        texts += [
            Path(f"/proc/{process}/{name}").read_text(errors="replace") for name in ("cmdline", "environ")
        ]
    for secret in (SECRET, TOKEN, BOSS, "another-token-1", "wrong-token-1", "wrong-secret-key", key):
        assert not any(secret in text for text in texts)


@pytest.mark.parametrize(
    ("flags", "text"),
    [
        (("--auth", "nowhere.toml"), "permissions file"),
        (("--tls-cert", "a.pem"), "go together"),
        (("--tls-cert", "a.pem", "--tls-key", "b.pem"), "needs --tls-port"),
        (("--tls-port", "0", "--tls-cert", "a.pem", "--tls-key", "b.pem"), "certificate"),
        (("--host", "0.0.0.0"), "--auth"),
    ],
)
def test_what_cannot_be_served_is_said_in_one_line(tmp_path, flags, text):
    command = [sys.executable, "-m", "tidemill.cli.main", "serve", "--data", str(tmp_path / "data")]
    result = subprocess.run(
        [*command, "--port", "0", *_FLAGS, *flags], capture_output=True, text=True, timeout=60, check=False
    )
    assert result.returncode in (1, 2)
    assert text in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1


def test_with_auth_any_address_will_do_and_the_rate_is_kept(tmp_path):
    served = Secured(tmp_path / "data", *_FLAGS, "--host", "0.0.0.0", "--rate-per-client", "5")
    served.prepare("orders")
    try:
        served.start()
        codes = [_status(served, _signed()).code for _ in range(20)]
        assert codes[:5] == [Code.OK] * 5
        assert Code.TOO_MANY_REQUESTS in codes
        with tidemill.Client(f"https://{served.tls_endpoint}", token=BOSS, ca=served.ca) as client:
            client.status()  # another user has its own count
    finally:
        served.stop()


def test_a_caller_without_look_gets_the_answers_of_a_send_and_of_a_reschedule(
    served, monkeypatch, capsys
) -> None:
    monkeypatch.setenv("TIDEMILL_ENDPOINT", served.endpoint)
    monkeypatch.setenv("TIDEMILL_TOKEN", BLIND)
    assert main.run(["status"]) == 1
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    for due in (["--delay", "30m"], ["--at", "+30m"]):
        capsys.readouterr()
        assert main.run(["send", "orders", "unseen", *due]) == 0
        out, err = capsys.readouterr()
        assert out.startswith("sent: ") and ", due 20" in out and not err
        handle = out.split("handle: ")[1].strip()
        assert main.run(["reschedule", "orders", handle, "--at", "+2h"]) == 0
        assert main.run(["cancel", "orders", handle]) == 0
    assert main.run(["cancel", "orders", "--from", "now", "--to", "+1h"]) == 1  # not bad usage
    assert "may not look" in capsys.readouterr().err
