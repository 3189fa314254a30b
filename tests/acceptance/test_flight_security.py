"""Flight against a real `tidemill serve` with TLS and a permissions file: checked as elsewhere."""

from __future__ import annotations

import json
import ssl
import urllib.request

import pyarrow as pa
import pytest
from pyarrow import flight

import tidemill
from acceptance.secured import BOSS, PERMISSIONS, TOKEN, Secured
from acceptance.serving import wait_until
from tidemill.core.errors import UnauthorizedError
from tidemill.server.security.certificate import own_certificate

_ROWS = 2_000  # more than our client would send over HTTP


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    served = Secured(
        tmp_path_factory.mktemp("flight") / "data", "--pipeline", "embedded", "--flight-port", "0"
    )
    served.prepare("orders", "bills")
    yield served.start()
    served.stop()


def _place(served: Secured) -> dict[str, object]:
    with urllib.request.urlopen(f"http://{served.endpoint}/healthz", timeout=5) as answer:
        place: dict[str, object] = json.load(answer)["flight"]
    return place


def _client(served: Secured, **options: object) -> flight.FlightClient:
    roots = {"tls_root_certs": served.ca.read_bytes(), **options}
    return flight.connect(f"grpc+tls://127.0.0.1:{_place(served)['port']}", **roots)


def _bearing(token: str) -> flight.FlightCallOptions:
    return flight.FlightCallOptions(timeout=10, headers=[(b"authorization", b"Bearer " + token.encode())])


def _put(client: flight.FlightClient, token: str, topic: str = "orders") -> None:
    batch = pa.record_batch({"body": [b"x"], "delay_ms": [3_600_000]})
    writer, answers = client.do_put(flight.FlightDescriptor.for_path(topic), batch.schema, _bearing(token))
    with writer:
        writer.write_batch(batch)
        assert answers.read() is not None


def test_it_is_tls_and_nothing_else(served):
    assert _place(served)["tls"] is True
    with _client(served) as client:
        _put(client, TOKEN)
    with (
        flight.connect(f"grpc://127.0.0.1:{_place(served)['port']}") as plain,
        pytest.raises(pa.ArrowException),
    ):
        _put(plain, TOKEN)
    with (
        flight.connect(f"grpc+tls://127.0.0.1:{_place(served)['port']}") as trusting_nobody,
        pytest.raises(pa.ArrowException),
    ):
        _put(trusting_nobody, TOKEN)


def test_our_client_says_what_to_do_about_a_wrong_token(served):
    with (
        tidemill.Client(f"https://{served.tls_endpoint}", token="wrong-token-1", ca=served.ca) as client,
        pytest.raises(UnauthorizedError, match=r"^unknown token; use one .* names$"),
    ):
        client.tables.schema({"table": "pending"})


def test_tokens_and_topics_are_those_of_the_permissions_file(served):
    with _client(served) as client:
        with pytest.raises(flight.FlightUnauthenticatedError, match="unknown token"):
            _put(client, "wrong-token-1")
        with pytest.raises(flight.FlightUnauthorizedError, match="'bills'"):
            _put(client, TOKEN, "bills")
        _put(client, BOSS, "bills")


def test_the_file_is_read_again_here_too(served):
    with _client(served) as client:

        def works(token: str) -> bool:
            try:
                _put(client, token)
            except flight.FlightUnauthenticatedError:
                return False
            return True

        assert works(BOSS)
        try:
            served.permissions.write_text(PERMISSIONS.replace(BOSS, "another-token-1"))
            wait_until(lambda: works("another-token-1"), "the new token", 10)
            assert not works(BOSS)
        finally:
            served.permissions.write_text(PERMISSIONS)
        wait_until(lambda: works(BOSS), "the old token", 10)


def test_our_client_takes_its_token_and_certificate_along(served):
    table = pa.table({"body": [b"bulk"] * _ROWS, "delay_ms": [3_600_000] * _ROWS})
    with tidemill.Client(f"https://{served.tls_endpoint}", token=TOKEN, ca=served.ca) as client:
        receipts = client.schedule(table, topic="orders")
        handles = [receipt.handle for receipt in receipts if isinstance(receipt, tidemill.SendResult)]
        assert len(handles) == _ROWS
        answers = client.cancel_many([handle for handle in handles if handle is not None])
        assert answers == [tidemill.CancelAnswer.CANCELLED] * _ROWS


def test_a_certificate_that_is_replaced_is_used_at_once_by_every_port(served, tmp_path):
    """Also where the broker had to start again in the middle of it."""
    ports = (served.tls_port, _place(served)["port"])

    def shown() -> set[str]:
        try:
            return {ssl.get_server_certificate(("127.0.0.1", port)).strip() for port in ports}
        except OSError:  # Flight closes for a moment
            return set()

    old, (new_cert, new_key) = served.ca.read_text(), own_certificate(tmp_path, "127.0.0.1")
    both = tmp_path / "both.pem"
    both.write_text(old + new_cert.read_text())
    with tidemill.Client(f"https://{served.tls_endpoint}", token=TOKEN, ca=both) as client:
        client.tables.store(pa.table({"body": [b"before"]}), topic="orders")
        new_cert.replace(served.ca)
        wait_until(lambda: "the TLS certificate stays as it was" in served.log(), "half of it refused")
        assert shown() == {old.strip()}
        served.kill_broker()  # what comes up again is without TLS for now, but it comes up
        wait_until(
            lambda: "TLS and Flight are unavailable" in served.log() and served.is_ready(), "a new broker"
        )
        assert shown() == set()
        new_key.replace(served.ca.with_name("key.pem"))
        wait_until(lambda: shown() == {served.ca.read_text().strip()}, "the new certificate")
        client.tables.store(pa.table({"body": [b"after"]}), topic="orders")
        client.send("orders", b"after", delay="1h")
    with _client(served) as other:  # which trusts the new one alone
        _put(other, TOKEN)


def test_no_token_reaches_the_log(served):
    for secret in (TOKEN, BOSS, "another-token-1", "wrong-token-1"):
        assert secret not in served.log()
