"""Delay levels and retries through every endpoint of a real `tidemill serve` on a simulated clock."""

from __future__ import annotations

import json
import urllib.error
import urllib.request

import grpc
import pyarrow as pa
import pytest

import tidemill
from acceptance.serving import Served
from tidemill.core.errors import TidemillError
from tidemill.server.grpc.protocol import SERVICE, Code, definition, service


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    flags = ("--clock", "simulated", "--pipeline", "embedded", "--auto-create", "--flight-port", "0")
    served = Served(tmp_path_factory.mktemp("levels") / "data", *flags).start()
    yield served
    served.stop()


@pytest.fixture
def client(served):
    with tidemill.Client(served.endpoint) as client:
        yield client


def _http(served, path: str, body: dict | None = None) -> dict:
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(
        f"http://{served.endpoint}{path}", data, {"content-type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=10) as answer:
        return json.load(answer)


def _grpc(served, level: str) -> object:
    message = definition.Message(body=b"grpc")
    message.topic.name, message.system_properties.message_id = "endpoints", f"G{level}"
    message.user_properties["DELAY"] = level
    with grpc.insecure_channel(served.endpoint) as channel:
        method = channel.unary_unary(
            SERVICE + "SendMessage",
            request_serializer=service.SendMessageRequest.SerializeToString,
            response_deserializer=service.SendMessageResponse.FromString,
        )
        return method(service.SendMessageRequest(messages=[message]), timeout=10)


def test_a_level_five_message_arrives_after_one_minute_from_every_endpoint(served, client, cli) -> None:
    start_ms = client.status().now_ms
    assert cli("send", "endpoints", "cli", "--level", "5")[0] == 0
    _http(served, "/v1/messages", {"topic": "endpoints", "body": "http", "level": 5})
    client.send("endpoints", b"client", level=5)
    table = pa.table({"body": [b"flight"] * 200, "level": pa.array([5] * 200, pa.int32())})
    assert len(client.schedule(table, topic="endpoints")) == 200
    assert _grpc(served, "5").status.code == Code.OK
    levels = {level["level"]: level for level in client.status().fields["levels"]}
    assert (levels[5]["waiting"], levels[5]["next_due_ms"]) == (204, start_ms + 60_000)
    client.admin.advance("59999ms")
    assert client.receive_batch("endpoints", "g") == []
    client.admin.advance("1ms")
    came = []
    while found := client.receive_batch("endpoints", "g", count=300):
        came += found
        client.ack(*found)
    assert {m.body for m in came} == {b"cli", b"http", b"client", b"flight", b"grpc"}
    assert len(came) == 204
    assert {m.released_at_ms - start_ms for m in came} == {60_000}
    assert {m.via for m in came} == {"level"}


def test_every_endpoint_refuses_levels_that_are_none_and_notes_those_too_high(served, client, cli) -> None:
    assert _grpc(served, "-1").status.code == Code.ILLEGAL_DELIVERY_TIME
    assert _grpc(served, "three").status.code == Code.ILLEGAL_DELIVERY_TIME
    with pytest.raises(TidemillError, match="negative"):
        client.send("endpoints", b"x", level=-1)
    code, _, err = cli("send", "endpoints", "x", "--level", "-3")
    assert (code, "level -3 is negative; use 1 to 18" in err) == (2, True)
    assert cli("send", "endpoints", "x", "--level", "three")[0] == 2
    with pytest.raises(urllib.error.HTTPError) as refused:
        _http(served, "/v1/messages", {"topic": "endpoints", "body": "x", "level": -1})
    refused.value.close()
    assert refused.value.code == 400
    noted = _http(served, "/v1/messages", {"topic": "endpoints", "body": "x", "level": 99})
    assert noted["note"] == "level 99 is above the highest, 18 was used"
    assert json.loads(cli("send", "endpoints", "x", "--level", "99", "--json")[1])["note"] == noted["note"]
    table = pa.table({"body": [b"x"] * 200, "level": pa.array([99, 18] * 100, pa.int32())})
    receipts = client.schedule(table, topic="endpoints")  # over Flight
    assert {receipt.note for receipt in receipts[::2]} == {noted["note"]} == {receipts[198].note}
    assert {receipt.note for receipt in receipts[1::2]} == {""}
    refusals = client.schedule(pa.table({"body": [b"x"] * 200, "level": [-1] * 200}), topic="endpoints")
    assert all(isinstance(one, TidemillError) and "negative" in str(one) for one in refusals)


def test_levels_are_in_status_and_metrics(served, client, cli) -> None:
    client.send("waiting", b"x", level=18)
    assert "18 (2h)" in cli("status")[1]
    with urllib.request.urlopen(f"http://{served.endpoint}/metrics", timeout=10) as answer:
        text = answer.read().decode()
    (line,) = [
        one for one in text.splitlines() if one.startswith("tidemill_level_waiting") and 'l="18"' in one
    ]
    assert float(line.rsplit(" ", 1)[1]) >= 1


def test_send_back_and_dead_letters_by_client_and_command_line(served, client, cli) -> None:
    client.groups.set("retrying", max_attempts=2, backoff="7s")
    client.send("work", b"poison", key="order-1")
    (first,) = client.receive_batch("work", "retrying")
    (sent,) = client.nack(first, level=0)
    assert (sent.answer, sent.deliver_at_ms) == ("again", client.status().now_ms + 7_000)
    (waiting,) = client.pending("%RETRY%retrying")
    assert waiting.id == first.id
    client.admin.advance("7s")
    (second,) = client.receive_batch("work", "retrying")
    assert (second.attempt, second.topic, second.body) == (2, "work", b"poison")
    assert client.nack(second, level=0)[0].answer == "dead"
    code, out, _ = cli("dead-letters", "list", "--group", "retrying", "--json")
    letter = json.loads(out)
    assert (code, letter["id"], letter["topic"], letter["attempts"]) == (0, first.id, "work", 2)
    assert "order-1" in cli("dead-letters", "list")[1]
    assert cli("dead-letters", "resend", "--group", "retrying")[0] == 2
    assert cli("dead-letters", "resend", "--group", "retrying", "--id", "unknown")[0] == 1
    assert "1 resent" in cli("dead-letters", "resend", "--group", "retrying", "--id", first.id)[1]
    assert cli("dead-letters", "list", "--group", "retrying")[1] == "no dead letters\n"
    (again,) = client.receive_batch("work", "retrying")
    assert (again.attempt, again.body) == (1, b"poison")
    assert client.dead_letter(again) == [True]
    assert cli("dead-letters", "resend", "--group", "retrying", "--all")[0] == 0
    assert len(client.receive_batch("work", "other")) == 1  # the message itself, not its retries
