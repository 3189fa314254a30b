"""The admin API over a small broker: every verb, every kind of error, figures and health."""

from __future__ import annotations

import base64
import json
import re

import pytest

from helpers.asgi_caller import AsgiCaller
from helpers.open_app import OpenApp
from helpers.small_broker import START_MS, SmallBroker
from tidemill.core.errors import IdInUseError
from tidemill.core.limits import ATTEMPTS_MAX, RELEASE_RATE_MAX
from tidemill.core.model import Draft, Handle, SendResult
from tidemill.core.send_answers import decode_answers
from tidemill.core.send_batch import encode_drafts


@pytest.fixture
def http(small):
    with AsgiCaller(OpenApp(small.broker)) as client:
        yield client


def _send(http, **message):
    answer = http.post("/v1/messages", json={"topic": "orders", "body": "x", **message})
    assert answer.status_code == 200, answer.text
    return answer.json()


def _receive(http, **request):
    answer = http.post("/v1/receive", json={"topic": "orders", "group": "g", **request})
    assert answer.status_code == 200, answer.text
    return answer.json()["deliveries"]


def test_a_timed_message_is_received_after_its_time(http, small) -> None:
    receipt = _send(http, delay_ms=5_000, keys=["k"], tag="t", properties={"a": "1"})
    assert receipt["deliver_at_ms"] == START_MS + 5_000
    assert _receive(http) == []
    assert http.post("/v1/clock/advance", json={"by_ms": 5_000}).json() == {"now_ms": START_MS + 5_000}
    (delivery,) = _receive(http)
    assert delivery["message_id"] == receipt["message_id"]
    assert (delivery["body"], delivery["keys"], delivery["tag"]) == ("x", ["k"], "t")
    assert delivery["properties"]["a"] == "1"
    assert delivery["released_at_ms"] == START_MS + 5_000
    assert http.post("/v1/ack", json={"ack_tokens": [delivery["ack_token"]]}).json() == {"settled": [True]}
    assert http.post("/v1/ack", json={"ack_tokens": [delivery["ack_token"]]}).json() == {"settled": [False]}


def test_what_the_broker_adds_is_shown_apart_and_the_rest_may_be_sent_on(http, small) -> None:
    http.put("/v1/groups/g", json={"max_attempts": 2})
    _send(http, properties={"a": "1"})
    (first,) = _receive(http)
    assert (first["properties"], "broker_properties" in first) == ({"a": "1"}, False)
    http.post("/v1/nack", json={"ack_tokens": [first["ack_token"]], "level": 0})
    small.advance(10_000)
    (again,) = _receive(http)
    assert again["properties"] == {"a": "1"}
    assert again["broker_properties"]["RETRY_TOPIC"] == "orders"
    _send(http, topic="next", properties=again["properties"])
    answer = http.post(
        "/v1/messages", json={"topic": "next", "body": "x", "properties": again["broker_properties"]}
    )
    assert (answer.status_code, answer.json()["code"]) == (400, "illegal-property")
    http.post("/v1/nack", json={"ack_tokens": [again["ack_token"]], "level": 0})
    (letter,) = http.get("/v1/dead-letters?group=g").json()["dead_letters"]
    assert letter["properties"] == {"a": "1"}
    assert letter["broker_properties"]["DLQ_ORIGIN_TOPIC"] == "orders"


def test_what_the_broker_adds_is_shown_apart_also_where_messages_are_found(http) -> None:
    _send(http, keys=["k"], properties={"a": "1"})
    (first,) = _receive(http)
    answer = http.post("/v1/nack", json={"ack_tokens": [first["ack_token"]], "level": 1}).json()
    (found,) = http.get("/v1/topics/%25RETRY%25g/find?key=k").json()["messages"]
    opened = http.get(f"/v1/message?handle={answer['answers'][0]['handle']}").json()
    (sent,) = http.get("/v1/topics/orders/find?key=k").json()["messages"]
    for shown in (found, opened):
        assert shown["properties"] == {"a": "1"}
        assert shown["broker_properties"]["ORIGIN_MESSAGE_ID"] == first["message_id"]
    assert (sent["properties"], sent["broker_properties"]) == ({"a": "1"}, {})


def test_a_due_message_says_what_it_waits_for(http, small) -> None:
    handle = _send(http, keys=["k"], delay_ms=1_000)["handle"]
    small.broker.topics.change("orders", is_paused=True)
    assert http.get(f"/v1/message?handle={handle}").json()["waits_for"] is None
    small.advance(2_000)
    assert http.get(f"/v1/message?handle={handle}").json()["waits_for"] == "pause"
    (waiting,) = http.get("/v1/pending?topic=orders").json()["pending"]
    assert waiting["waits_for"] == "pause"


def test_a_receipt_says_where_the_message_is_unless_it_waits(http) -> None:
    receipts = [_send(http, id=name) for name in ("a", "b", "a")]
    placed = {d["message_id"]: (d["queue"], d["offset"]) for d in _receive(http)}
    assert [(r["queue"], r["offset"]) for r in receipts] == [placed[r["message_id"]] for r in receipts]
    waiting = _send(http, delay_ms=5_000)
    assert (waiting["queue"], waiting["offset"]) == (None, None)


def test_an_id_of_another_message_is_refused(http) -> None:
    first = _send(http, id="mine", delay_ms=5_000)
    assert _send(http, id="mine", delay_ms=9_000) == {**first, "is_repeat": True}
    answer = http.post("/v1/messages", json={"topic": "orders", "body": "y", "id": "mine"})
    assert (answer.status_code, answer.json()["code"]) == (409, "id-in-use")
    assert "'mine' in topic 'orders'" in answer.json()["message"]
    drafts = [Draft("orders", b"%d" % number, id=name) for number, name in enumerate(("one", "mine", "two"))]
    answers = decode_answers(http.post("/v1/send-batch", content=encode_drafts(drafts)).content, drafts)
    assert [type(answer) for answer in answers] == [SendResult, IdInUseError, SendResult]


def test_a_body_that_is_not_text_travels_in_base64(http) -> None:
    encoded = base64.b64encode(b"\xff\x00").decode()
    _send(http, body="", body_base64=encoded)
    (delivery,) = _receive(http)
    assert (delivery["body"], delivery["body_base64"]) == (None, encoded)


_HALF_A_CHARACTER = "\\ud800"


def test_half_a_character_is_refused_and_of_many_messages_alone(http) -> None:
    def post(path: str, content: str):
        return http.post(path, content=content.encode(), headers={"content-type": "application/json"})

    wrong, right = f'{{"topic": "orders", "body": "{_HALF_A_CHARACTER}"}}', '{"topic": "orders", "body": "x"}'
    refused = post("/v1/messages", wrong)
    assert (refused.status_code, refused.json()["code"]) == (400, "bad-request")
    bad_base64 = '{"topic": "orders", "body_base64": "%"}'
    answers = post("/v1/messages/many", f'{{"messages": [{right}, {wrong}, {bad_base64}, {right}]}}')
    assert [one["error"] is None for one in answers.json()["answers"]] == [True, False, False, True]
    whole = post("/v1/messages/many", f'{{"messages": [{right}, {wrong}], "all_or_none": true}}')
    assert whole.status_code == 400
    tags = f'{{"topic": "orders", "group": "g", "tags": ["{_HALF_A_CHARACTER}"]}}'
    assert post("/v1/receive", tags).status_code == 400
    assert len(_receive(http)) == 2


def test_many_messages_have_an_answer_each(http) -> None:
    messages = [{"topic": "orders", "body": "1"}, {"topic": "no good", "body": "2"}]
    answers = http.post("/v1/messages/many", json={"messages": messages}).json()["answers"]
    assert answers[0]["result"]["topic"] == "orders"
    assert answers[1]["error"]["code"] == "illegal-topic"
    refused = http.post("/v1/messages/many", json={"messages": messages, "all_or_none": True})
    assert (refused.status_code, refused.json()["code"]) == (400, "illegal-topic")
    assert len(_receive(http)) == 1


def test_a_message_put_off_comes_again(http, small) -> None:
    _send(http)
    (first,) = _receive(http)
    body = {"ack_tokens": [first["ack_token"]], "lease_ms": 1_000}
    assert http.post("/v1/extend", json=body).json() == {"settled": [True]}
    assert _receive(http) == []
    small.advance(1_000)
    (second,) = _receive(http)
    assert (second["message_id"], second["attempt"]) == (first["message_id"], 2)


def test_a_consumer_waits_for_its_message(http, small) -> None:
    _send(http, delay_ms=500)
    assert _receive(http, wait_ms=50) == []
    small.advance(500)
    assert len(_receive(http, wait_ms=10_000)) == 1


def test_tags_choose_what_a_group_gets(http) -> None:
    _send(http, tag="a")
    _send(http, tag="b")
    assert [delivery["tag"] for delivery in _receive(http, tags=["b"])] == ["b"]


def test_cancel_by_handle_answers_definitely(http, small) -> None:
    handle = _send(http, delay_ms=60_000)["handle"]
    late = _send(http, delay_ms=1_000)["handle"]
    small.advance(1_000)
    unknown = str(Handle(small.broker.id, "orders", "nobody", 99))
    asked = {"handles": [handle, handle, late, unknown]}
    answer = http.post("/v1/cancel", json=asked).json()
    assert answer == {
        "cancelled": 1,
        "answers": ["cancelled", "already-cancelled", "released", "unknown"],
    }


def _change(http, verb, key, asked):
    answer = http.post(f"/v1/{verb}", json=asked, headers={"idempotency-key": key})
    return answer.status_code, answer.json()


def test_a_repeated_request_with_the_same_key_gets_the_first_answer(http, small) -> None:
    handles = [_send(http, delay_ms=60_000 + n, keys=["k"])["handle"] for n in range(3)]
    asks = [
        ("cancel", "a", {"handles": [handles[0], handles[0]]}),
        ("reschedule", "b", {"handles": [handles[1]], "by_ms": 5}),
        ("reschedule", "c", {"topic": "orders", "key": "k", "by_ms": 5}),
        (
            "reschedule",
            "d",
            {"topic": "orders", "from_ms": START_MS, "to_ms": START_MS + 90_000, "delay_ms": 5},
        ),
        ("cancel", "e", {"topic": "orders", "key": "k"}),
    ]
    answers = [_change(http, verb, key, asked) for verb, key, asked in asks]
    assert answers[0] == (200, {"cancelled": 1, "answers": ["cancelled", "already-cancelled"]})
    assert [answer["moved"] for _, answer in answers[1:4]] == [1, 2, 2]
    assert answers[4] == (200, {"cancelled": 2, "answers": None})
    end = small.log_end
    small.clock.advance(1)
    assert [_change(http, verb, key, asked) for verb, key, asked in asks] == answers
    assert small.log_end == end


def test_the_same_key_with_another_request_is_refused(http) -> None:
    handle = _send(http, delay_ms=60_000)["handle"]
    assert _change(http, "cancel", "a", {"handles": [handle]})[0] == 200
    status, answer = _change(http, "cancel", "a", {"topic": "orders", "key": "k"})
    assert (status, answer["code"]) == (422, "request-id-reused")
    assert "the request id 'a' was used within the last 1h for another request" in answer["message"]


@pytest.mark.parametrize("verb", ["cancel", "reschedule"])
@pytest.mark.parametrize("keys", [("a", "b"), ("a", "a"), ("a", "", "b")])
def test_several_keys_in_one_request_are_refused(http, small, verb, keys) -> None:
    handle = _send(http, delay_ms=60_000)["handle"]
    asked = {"handles": [handle], **({"by_ms": 5} if verb == "reschedule" else {})}
    end = small.log_end
    answer = http.post(f"/v1/{verb}", json=asked, headers=[("idempotency-key", key) for key in keys])
    assert (answer.status_code, answer.json()["code"]) == (400, "illegal-request-id")
    assert f"the request has {len(keys)} Idempotency-Key headers, the limit is 1" in answer.json()["message"]
    assert small.log_end == end


@pytest.mark.parametrize("key", ["", "two words", "x" * 256, "caf\u00e9"])
@pytest.mark.parametrize("verb", ["cancel", "reschedule"])
def test_a_key_that_is_none_is_refused(http, small, verb, key) -> None:
    handle = _send(http, delay_ms=60_000)["handle"]
    asked = {"handles": [handle], **({"by_ms": 5} if verb == "reschedule" else {})}
    status, answer = _change(http, verb, key.encode("latin-1"), asked)
    assert (status, answer["code"]) == (400, "illegal-request-id")
    assert small.broker.status().pending == 1


def test_cancel_by_key_and_by_range_count(http) -> None:
    for second in range(5):
        _send(http, delay_ms=60_000 + 1_000 * second, keys=["even" if second % 2 == 0 else "odd"])
    assert http.post("/v1/cancel", json={"topic": "orders", "key": "odd"}).json()["cancelled"] == 2
    span = {"topic": "orders", "from_ms": START_MS + 60_000, "to_ms": START_MS + 62_001}
    assert http.post("/v1/cancel", json=span).json()["cancelled"] == 2
    assert len(http.get("/v1/pending").json()["pending"]) == 1


def test_reschedule_by_handle_key_and_range(http) -> None:
    handle = _send(http, delay_ms=60_000, keys=["k"])["handle"]
    moved = http.post("/v1/reschedule", json={"handles": [handle], "by_ms": 5_000}).json()
    assert moved["answers"][0]["deliver_at_ms"] == START_MS + 65_000
    by_key = {"topic": "orders", "key": "k", "delay_ms": 1_000}
    assert http.post("/v1/reschedule", json=by_key).json()["moved"] == 1
    span = {"topic": "orders", "from_ms": START_MS, "to_ms": START_MS + 2_000}
    assert http.post("/v1/reschedule", json={**span, "deliver_at_ms": START_MS + 9_000}).json()["moved"] == 1
    (pending,) = http.get("/v1/pending", params={"topic": "orders", "key": "k"}).json()["pending"]
    assert pending["deliver_at_ms"] == START_MS + 9_000
    http.post("/v1/cancel", json={"handles": [pending["handle"]]})
    again = http.post("/v1/reschedule", json={"handles": [handle], "by_ms": 1}).json()
    assert (again["moved"], again["answers"][0]["answer"]) == (0, "already-cancelled")


def test_pending_and_forecast_show_what_waits(http) -> None:
    _send(http, delay_ms=90_000)
    _send(http, delay_ms=30_000)
    rows = http.get("/v1/pending", params={"limit": 1}).json()["pending"]
    assert [row["deliver_at_ms"] for row in rows] == [START_MS + 30_000]
    forecast = http.get("/v1/forecast", params={"horizon_ms": 180_000}).json()["minutes"]
    assert sum(minute["due"] for minute in forecast) == 2


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        ({}, 5),
        ({"topic": "orders"}, 4),
        ({"key": "even"}, 3),
        ({"topic": "orders", "key": "even"}, 2),
        ({"topic": "orders", "key": "even", "from_ms": START_MS + 61_000}, 1),
        ({"topic": "orders", "from_ms": START_MS + 61_000, "to_ms": START_MS + 63_000}, 2),
        ({"from_ms": 0, "to_ms": START_MS // 60_000 * 60_000}, 0),
        ({"topic": "orders", "from_ms": START_MS // 60_000 * 60_000}, 4),
        ({"key": "none"}, 0),
    ],
)
def test_pending_messages_are_counted_by_the_filters_of_the_list(http, asked, expected) -> None:
    for second in range(4):
        _send(http, delay_ms=60_000 + 1_000 * second, keys=["even" if second % 2 == 0 else "odd"])
    http.post("/v1/messages", json={"topic": "bills", "body": "x", "delay_ms": 61_000, "keys": ["even"]})
    assert http.get("/v1/pending/count", params=asked).json()["messages"] == expected
    assert len(http.get("/v1/pending", params=asked).json()["pending"]) == expected


def test_find_and_read_show_messages_without_taking_them(http, small) -> None:
    _send(http, keys=["k"], body="first")
    _send(http, keys=["k"], body="second", delay_ms=60_000)
    found = http.get("/v1/topics/orders/find", params={"key": "k"}).json()["messages"]
    assert sorted(message["body"] for message in found) == ["first", "second"]
    read = [m for q in (0, 1) for m in http.get(f"/v1/topics/orders/read?queue={q}").json()["messages"]]
    assert [(m["body"], m["offset"]) for m in read] == [("first", 0)]
    assert http.get("/v1/topics/orders/read?queue=7").status_code == 400


def test_find_tells_what_waits_what_was_delivered_and_what_was_cancelled(http, small) -> None:
    _send(http, keys=["k"], body="direct")
    _send(http, keys=["k"], body="released", delay_ms=5_000)
    _send(http, keys=["k"], body="waits", delay_ms=60_000)
    cancelled = _send(http, keys=["k"], body="cancelled", delay_ms=60_000)["handle"]
    http.post("/v1/cancel", json={"handles": [cancelled]})
    small.advance(5_000)
    messages = http.get("/v1/topics/orders/find", params={"key": "k"}).json()["messages"]
    found = {m["body"]: (m["state"], m["queue"], m["offset"], m["released_at_ms"]) for m in messages}
    read = [m for q in (0, 1) for m in http.get(f"/v1/topics/orders/read?queue={q}").json()["messages"]]
    assert found == {
        "waits": ("pending", None, None, None),
        "cancelled": ("cancelled", None, None, None),
        **{m["body"]: ("released", m["queue"], m["offset"], m["released_at_ms"]) for m in read},
    }
    assert found["direct"][3] == START_MS
    assert found["released"][3] == START_MS + 5_000
    assert {m["state"] for m in read} == {"released"}


def test_topics_are_made_paused_limited_and_deleted(http, small) -> None:
    made = http.post("/v1/topics", json={"name": "t", "type": "delay", "queues": 3}).json()
    assert (made["type"], made["queues"]) == ("delay", 3)
    clash = http.post("/v1/topics", json={"name": "t", "type": "fifo"})
    assert (clash.status_code, clash.json()["code"]) == (409, "topic-exists")
    assert http.post("/v1/topics/t/pause").json()["is_paused"]
    assert not http.post("/v1/topics/t/resume").json()["is_paused"]
    assert http.post("/v1/topics/t/limit", json={"per_second": 7}).json()["release_rate_max"] == 7
    _send(http, topic="t", delay_ms=60_000)
    assert http.delete("/v1/topics/t").status_code == 409
    assert http.delete("/v1/topics/t", params={"force": True}).json() == {"cancelled": 1}
    assert http.delete("/v1/topics/t").json()["code"] == "unknown-topic"


def test_groups_are_set_listed_and_reset(http, small) -> None:
    group = http.put("/v1/groups/g", json={"max_attempts": 3, "is_fifo": True, "start": "first"}).json()
    assert (group["max_attempts"], group["is_fifo"]) == (3, True)
    _send(http)
    (delivery,) = _receive(http)
    http.post("/v1/ack", json={"ack_tokens": [delivery["ack_token"]]})
    assert http.get("/v1/groups").json()["groups"][0]["lag"] == {"orders": 0}
    reset = {"topic": "orders", "to_ms": START_MS}
    assert http.post("/v1/groups/g/reset", json=reset).status_code == 200
    assert len(_receive(http)) == 1


def test_the_batch_endpoint_answers_each_message(http) -> None:
    drafts = [
        Draft("orders", b"1", delay_ms=1_000, id="a"),
        Draft("bad topic", b"2", id="b"),
        Draft("orders", b"3", id="c"),
        Draft("orders", b"1", delay_ms=2_000, id="a"),
    ]
    answer = http.post("/v1/send-batch", content=encode_drafts(drafts))
    first, wrong, plain, repeat = decode_answers(answer.content, drafts)
    assert isinstance(first, SendResult) and first.deliver_at_ms == START_MS + 1_000
    assert wrong.code == "illegal-topic"
    assert isinstance(plain, SendResult) and plain.handle is None
    assert repeat == SendResult("a", "orders", first.handle, first.deliver_at_ms, is_repeat=True)


@pytest.mark.parametrize("content", [b"", b"TMB1", b"TMB1\xff\xff\xff\xff", b"TMB1\x02\0\0\0[]", b"x" * 100])
def test_the_batch_endpoint_refuses_garbage(http, content) -> None:
    answer = http.post("/v1/send-batch", content=content)
    assert (answer.status_code, answer.json()["code"]) == (400, "bad-request")
    said = "not a batch of messages: it begins with TMB1 or TMB2, the length of its header and a JSON object"
    assert answer.json()["message"] == said


def _batch(**columns: object) -> bytes:
    header = json.dumps({"size": [1, 1], "topics": ["t"], **columns}).encode()
    return b"TMB2" + len(header).to_bytes(4, "little") + header + b"ab"


@pytest.mark.parametrize(("level", "code"), [(1 << 40, None), (-(1 << 40), "illegal-level")])
def test_a_level_of_any_size_concerns_its_own_message_of_a_batch(http, level, code) -> None:
    answer = http.post("/v1/send-batch", content=_batch(level=[level, 0]))
    assert answer.status_code == 200
    first, second = decode_answers(answer.content, [Draft("t", b"a", level=level), Draft("t", b"b")])
    assert getattr(first, "code", None) == code and isinstance(second, SendResult)


@pytest.mark.parametrize(
    ("columns", "says"),
    [
        (
            {"level": [0, 1 << 60]},
            "'level' of the batch: 1152921504606846976 in row 1 is not possible; use a w",
        ),
        (
            {"level": [0, True]},
            "'level' of the batch: true in row 1 is not possible; use a whole number below",
        ),
        ({"level": [0]}, "'level' of the batch has length 1; use 2, one value per message"),
        ({"level": 3}, "'level' of the batch must be a list, 3 was given"),
        (
            {"delay": 1 << 60},
            "'delay' of the batch: 1152921504606846976 in row 0 is not possible; use a whole",
        ),
        (
            {"due": ["soon", None]},
            "'due' of the batch: \"soon\" in row 0 is not possible; use a whole number",
        ),
        ({"tag": ["x", None]}, "'tag' of the batch: null in row 1 is not possible; use a text"),
        (
            {"keys": [None, [5]]},
            "'keys' of the batch: a list of 1 in row 1 is not possible; use a list of texts",
        ),
        (
            {"once": ["no", "yes"]},
            "'once' of the batch: \"yes\" in row 1 is not possible; use `no`, `keep` or",
        ),
    ],
)
def test_a_wrong_value_of_a_batch_is_named(http, columns, says) -> None:
    answer = http.post("/v1/send-batch", content=_batch(**columns))
    assert (answer.status_code, answer.json()["code"]) == (400, "bad-request")
    assert answer.json()["message"].startswith("column " + says)


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "code"),
    [
        ("POST", "/v1/receive", {"topic": "none", "group": "g"}, 404, "unknown-topic"),
        ("POST", "/v1/messages", {"topic": "t", "bdy": "x"}, 400, "bad-request"),
        ("POST", "/v1/messages", {"topic": "t", "body": "", "delay_ms": 1, "level": 1}, 400, "bad-request"),
        ("POST", "/v1/messages", {"topic": "t", "body": "", "delay_ms": 1 << 50}, 400, "illegal-delay"),
        ("POST", "/v1/messages", {"topic": "t", "body": "", "delay_ms": -5}, 400, "illegal-delay"),
        ("POST", "/v1/messages", {"topic": "t", "body": "x" * (4 << 20) + "x"}, 413, "body-too-large"),
        ("POST", "/v1/cancel", {"handles": ["???"]}, 400, "illegal-handle"),
        ("POST", "/v1/cancel", {"topic": "t"}, 400, "bad-request"),
        ("POST", "/v1/cancel", {"handles": [], "from_ms": 5}, 400, "bad-request"),
        ("POST", "/v1/cancel", {"handles": [], "to_ms": 5}, 400, "bad-request"),
        ("POST", "/v1/reschedule", {"handles": [], "to_ms": 5, "by_ms": 1}, 400, "bad-request"),
        ("POST", "/v1/reschedule", {"topic": "t", "key": "k"}, 400, "bad-request"),
        ("POST", "/v1/reschedule", {"handles": [], "delay_ms": -1}, 400, "illegal-delay"),
        ("POST", "/v1/ack", {"ack_tokens": ["???"]}, 400, "invalid-receipt"),
        ("POST", "/v1/clock/advance", {}, 400, "bad-request"),
        ("GET", "/v1/pending?limit=0", None, 400, "bad-request"),
        ("GET", "/v1/nothing", None, 404, "http-404"),
        ("PUT", "/v1/status", {}, 405, "http-405"),
    ],
)
def test_every_error_has_a_code_and_says_what_to_do(http, method, path, body, status, code) -> None:
    answer = http.request(method, path, json=body)
    assert (answer.status_code, answer.json()["code"]) == (status, code)
    assert answer.json()["message"]


def test_a_forged_handle_does_no_harm(http, small) -> None:
    _send(http, delay_ms=60_000)
    forged = str(Handle(small.broker.id, "orders", "x", 1 << 80))
    assert http.post("/v1/cancel", json={"handles": [forged]}).status_code == 400


def test_what_was_swept_is_in_status_and_metrics(http, small) -> None:
    small.is_timer_damaged = True
    _send(http, delay_ms=1_000)
    small.broker.releaser._near.take_due(1 << 60, 10)  # memory loses it
    small.advance(59_000)
    assert http.get("/v1/status").json()["swept"] == 0
    small.advance(10_000)
    status = http.get("/v1/status").json()
    assert (status["pending"], status["released"], status["swept"], status["waits"]) == (0, 1, 1, [])
    assert "tidemill_swept_messages_total 1.0" in http.get("/metrics").text


def test_status_metrics_and_health(http, small) -> None:
    _send(http, delay_ms=1_000)
    small.advance(1_000)
    status = http.get("/v1/status").json()
    assert (status["pending"], status["released"], status["swept"]) == (0, 1, 0)
    assert {"p50", "p99", "max"} <= set(status["lateness_ms"])
    assert {"runner", "state", "lag_ms", "takeovers"} <= set(status["pipeline"])
    text = http.get("/metrics").text
    for line in (
        'tidemill_messages_sent_total{topic="orders"} 1.0',
        'tidemill_messages_released_total{topic="orders"} 1.0',
        'tidemill_pending_messages{topic="orders"} 0.0',
        "tidemill_release_lateness_seconds_count 1.0",
        "tidemill_commit_seconds_count",
    ):
        assert line in text
    assert http.get("/healthz").json()["status"] == "open"
    assert "/v1/receive" in http.get("/openapi.json").json()["paths"]


def _rejects(http, code):
    found = re.search(
        rf'tidemill_rejects_total{{code="{code}",protocol="http"}} (\d+)', http.get("/metrics").text
    )
    return int(found[1]) if found else 0


def test_every_refusal_is_counted_once(http, small) -> None:
    def counted(code, act):
        before = _rejects(http, code)
        act()
        return _rejects(http, code) - before

    wrong = {"topic": "no good", "body": "x"}
    batch = encode_drafts([Draft("no good", b"x"), Draft("fine", b"y"), Draft("no good", b"z")])
    assert counted("illegal-topic", lambda: http.post("/v1/messages", json=wrong)) == 1
    assert (
        counted("illegal-topic", lambda: http.post("/v1/messages/many", json={"messages": [wrong] * 3})) == 3
    )
    assert counted("illegal-topic", lambda: http.post("/v1/send-batch", content=batch)) == 2
    assert counted("bad-request", lambda: http.post("/v1/send-batch", content=b"nothing")) == 1
    assert counted("bad-request", lambda: http.post("/v1/messages", json={})) == 1
    assert counted("http-404", lambda: http.get("/v1/nothing")) == 1
    assert counted("illegal-topic", lambda: _send(http)) == 0


def test_what_is_no_json_is_refused_in_words(http) -> None:
    form = http.post("/v1/messages", data={"topic": "t"}).json()["message"]
    assert "`Content-Type: application/json`" in form
    broken = http.post("/v1/messages", content=b"{bad", headers={"content-type": "application/json"})
    assert broken.json()["message"] == "the request: not JSON, from character 1 on; see /docs"


@pytest.mark.parametrize(
    ("path", "content", "says"),
    [
        ("/v1/messages", b'{"topic": "t", "body": "\xff"}', "the body is not UTF-8 text, byte 24 is 0xff"),
        ("/v1/receive", b'{"topic": "\xff", "group": "g"}', "the body is not UTF-8 text, byte 11 is 0xff"),
        ("/v1/messages", b"[" * 100_000, "nested too deeply"),
        (
            "/v1/messages",
            b'{"topic": "t", "body": "", "delay": 5}',
            "delay: unknown field; use `delay_ms`, in",
        ),
        (
            "/v1/messages",
            b'{"topic": "t", "body": "", "key": "k"}',
            "key: unknown field; did you mean `keys`?",
        ),
        ("/v1/clock/advance", b'{"zzz": 1}', "zzz: unknown field; known are by_ms, to_ms"),
        (
            "/v1/messages/many",
            b'{"messages": [{"topic": "t", "body": "", "jitter": 5}]}',
            "messages.0.jitter: unknown field; use `jitter_ms`, in milliseconds",
        ),
        (
            "/v1/receive",
            b'{"topic": "t", "group": "g", "lease_ms": 0}',
            "lease_ms: 0 is not possible; use 1 or more",
        ),
        ("/v1/messages", b'{"topic": "t"}', "the message has no body; give `body`"),
        ("/v1/messages", b'{"body": ""}', "topic: it is missing; this field is required; see /docs"),
        (
            "/v1/messages",
            b'{"topic": 5, "body": ""}',
            "topic: 5 is not possible; use a text; see /docs",
        ),
        (
            "/v1/messages",
            b'{"topic": "t", "body": "", "once": "yes"}',
            "once: \"yes\" is not possible; use 'no', 'keep' or 'replace'",
        ),
        (
            "/v1/messages",
            b'{"topic": "t", "body": "", "keys": "k"}',
            'keys: "k" is not possible; use a list',
        ),
        (
            "/v1/messages",
            b'{"topic": "t", "body": "", "properties": []}',
            "properties: a list of 0 is not possible; use an object",
        ),
        ("/v1/messages", b"[]", "the request: a list of 0 is not possible; use an object"),
        (
            "/v1/messages/many",
            b'{"messages": [5]}',
            "messages.0: 5 is not possible; use an object",
        ),
        (
            "/v1/receive",
            b'{"topic": "", "group": "g"}',
            'topic: "" is not possible; use 1 or more characters',
        ),
        (
            "/v1/receive",
            b'{"topic": "t", "group": "' + b"g" * 300 + b'"}',
            "group: a text of 300 characters is not possible; use 255 or fewer characters",
        ),
        (
            "/v1/receive",
            b'{"topic": "t", "group": "g", "tags": []}',
            "tags: a list of 0 is not possible; use 1 or more values",
        ),
        ("/v1/topics", b'{"name": "t", "type": "odd"}', 'type: "odd" is not possible; use '),
        (
            "/v1/dead-letters/resend",
            b'{"group": "g", "all": "perhaps"}',
            'all: "perhaps" is not possible; use true or false',
        ),
    ],
)
def test_a_wrong_body_is_named_with_value_and_limit(http, small, path, content, says) -> None:
    answer = http.post(path, content=content, headers={"content-type": "application/json"})
    assert (answer.status_code, answer.json()["code"]) == (400, "bad-request")
    assert says in answer.json()["message"]
    assert small.broker.store.ledger.next_seq == 0 and not list(small.broker.store.topics)


@pytest.mark.parametrize("value", [True, "5", 5.5, [5], float("nan")])
@pytest.mark.parametrize(
    ("method", "path", "body", "field"),
    [
        *(
            ("POST", "/v1/messages", {"topic": "t", "body": "", "delay_ms": 5}, field)
            for field in ("delay_ms", "deliver_at_ms", "level", "jitter_ms")
        ),
        *(
            ("POST", "/v1/receive", {"topic": "t", "group": "g"}, field)
            for field in ("count", "wait_ms", "lease_ms")
        ),
        ("POST", "/v1/extend", {"ack_tokens": []}, "lease_ms"),
        *(("POST", "/v1/cancel", {"topic": "t"}, field) for field in ("from_ms", "to_ms")),
        *(
            ("POST", "/v1/reschedule", {"topic": "t", "key": "k"}, field)
            for field in ("deliver_at_ms", "delay_ms", "by_ms")
        ),
        ("POST", "/v1/topics", {"name": "t"}, "queues"),
        ("POST", "/v1/topics/t/limit", {}, "per_second"),
        ("PUT", "/v1/groups/g", {}, "max_attempts"),
        ("POST", "/v1/groups/g/reset", {"topic": "t"}, "to_ms"),
        *(("POST", "/v1/clock/advance", {}, field) for field in ("by_ms", "to_ms")),
    ],
)
def test_a_number_is_a_number_in_json(http, method, path, body, field, value) -> None:
    content = json.dumps({**body, field: value})
    answer = http.request(method, path, content=content, headers={"content-type": "application/json"})
    assert (answer.status_code, answer.json()["code"]) == (400, "bad-request")
    given = "a list of 1" if value == [5] else json.dumps(value)
    assert answer.json()["message"] == f"{field}: {given} is not possible; use a whole number; see /docs"


@pytest.mark.parametrize(
    ("method", "path", "field", "limit"),
    [
        ("PUT", "/v1/groups/g", "max_attempts", ATTEMPTS_MAX),
        ("POST", "/v1/topics/t/limit", "per_second", RELEASE_RATE_MAX),
    ],
)
def test_the_limit_that_is_named_is_the_one_that_holds(http, method, path, field, limit) -> None:
    _send(http, topic="t")
    wrong = http.request(method, path, json={field: limit + 1}).json()["message"]
    assert wrong == f"{field}: {limit + 1} is not possible; use {limit} or less; see /docs"
    assert http.request(method, path, json={field: limit}).status_code == 200


def test_a_number_of_a_query_is_named_with_its_limit(http) -> None:
    assert http.get("/v1/pending", params={"limit": "5"}).status_code == 200
    low = http.get("/v1/pending", params={"limit": "0"}).json()["message"]
    assert low == "limit: 0 is not possible; use 1 or more; see /docs"
    many = http.get("/v1/pending", params={"limit": "many"}).json()["message"]
    assert many == 'limit: "many" is not possible; use a whole number; see /docs'


@pytest.mark.parametrize(
    ("fields", "code", "says"),
    [
        ({"delay_ms": -1}, "illegal-delay", "delay_ms -1 is negative; use 0 or more"),
        ({"delay_ms": 1 << 70}, "illegal-delay", "is beyond the limit of 3650d"),
        ({"deliver_at_ms": 1 << 70}, "illegal-delay", "is beyond the limit of 3650d"),
        ({"delay_ms": 5, "jitter_ms": -1}, "illegal-delay", "jitter -1 ms is not possible; use 0 to"),
        ({"delay_ms": 5, "jitter_ms": 1 << 70}, "illegal-delay", "is beyond the limit of 3650d"),
        ({"level": -1}, "illegal-level", "-1"),
        ({"level": -(1 << 70)}, "illegal-level", "-1180591620717411303424"),
        ({"topic": ""}, "illegal-topic", "has 0 characters; use 1 to 127"),
        ({"topic": "t" * 300}, "illegal-topic", "has 300 characters; use 1 to 127"),
    ],
)
def test_a_message_out_of_range_is_refused_alone(http, fields, code, says) -> None:
    sent = {"messages": [{"topic": "t", "body": "1", **fields}, {"topic": "t", "body": "2"}]}
    answer = http.post("/v1/messages/many", json=sent)
    assert answer.status_code == 200
    wrong, right = answer.json()["answers"]
    assert wrong["error"]["code"] == code and says in wrong["error"]["message"]
    assert right["error"] is None
    whole = http.post("/v1/messages/many", json={**sent, "all_or_none": True})
    assert (whole.status_code, whole.json()["code"]) == (400, code)


def test_an_empty_body_is_sent_where_it_is_given_and_only_there(http) -> None:
    sent = {"messages": [{"topic": "t", "body": ""}, {"topic": "t"}, {"topic": "t", "body_base64": ""}]}
    answers = http.post("/v1/messages/many", json=sent).json()["answers"]
    assert [answer["error"] is None for answer in answers] == [True, False, True]
    assert "no body" in answers[1]["error"]["message"]


def test_a_fault_of_the_broker_answers_in_the_form_of_every_error(small, monkeypatch) -> None:
    def broken(*arguments: object, **named: object) -> None:
        raise KeyError("no such thing")

    monkeypatch.setattr(small.broker.views, "pending", broken)
    with AsgiCaller(OpenApp(small.broker), raises=False) as http:
        answer = http.get("/v1/pending")
    assert (answer.status_code, answer.json()["code"]) == (500, "error")
    assert "the broker failed at this request (KeyError: 'no such thing')" in answer.json()["message"]


def test_takeovers_and_leaps_are_counters_and_the_settings_are_there(http) -> None:
    text = http.get("/metrics").text
    for line in (
        "tidemill_pipeline_takeovers_total 0.0",
        "tidemill_clock_leaps_total 0.0",
        "tidemill_lead_seconds 30.0",
        "tidemill_in_flight_send_bytes 0.0",
        "tidemill_open_transactions 0.0",
        "tidemill_pipeline_unabsorbed_messages 0.0",
        'tidemill_pipeline_info{runner="embedded",state="running"} 1.0',
        "process_resident_memory_bytes",
    ):
        assert line in text


def test_a_timed_message_is_unabsorbed_until_the_timer_has_read_it(http, small) -> None:
    _send(http, delay_ms=3_600_000)
    assert "tidemill_pipeline_unabsorbed_messages 1.0" in http.get("/metrics").text
    small.advance(60_000)
    assert "tidemill_pipeline_unabsorbed_messages 0.0" in http.get("/metrics").text


def test_a_closed_broker_is_unavailable(tmp_path) -> None:
    small = SmallBroker(tmp_path / "data")
    with AsgiCaller(OpenApp(small.broker)) as http:
        small.close()
        assert http.get("/healthz").status_code == 503
        assert http.post("/v1/messages", json={"topic": "t", "body": "x"}).json()["code"] == "closed"


def test_the_description_promises_only_answers_that_are_given(http) -> None:
    spec = http.get("/openapi.json").json()
    promised = {
        (status, content["schema"]["$ref"].rsplit("/", 1)[-1])
        for operations in spec["paths"].values()
        for operation in operations.values()
        for status, answer in operation["responses"].items()
        if status.startswith("4")
        for content in answer["content"].values()
    }
    assert promised == {(str(status), "ErrorAnswer") for status in (400, 401, 403, 404, 409, 413, 429)}
    assert not {"HTTPValidationError", "ValidationError"} & set(spec["components"]["schemas"])
    wrong = http.get("/v1/pending", params={"limit": "many"})
    assert (wrong.status_code, set(wrong.json())) == (400, {"code", "message"})


def test_a_jitter_moves_a_message_later(http) -> None:
    now_ms = http.get("/v1/status").json()["now_ms"]
    asked_ms = now_ms + 60_000
    first = _send(http, id="mine", deliver_at_ms=asked_ms, jitter_ms=9_000)
    assert asked_ms <= first["deliver_at_ms"] <= asked_ms + 9_000
    assert _send(http, id="mine", deliver_at_ms=asked_ms, jitter_ms=9_000) == {**first, "is_repeat": True}
    message = {"topic": "orders", "body": "x", "deliver_at_ms": asked_ms, "jitter_ms": 9_000}
    (answer,) = http.post("/v1/messages/many", json={"messages": [message]}).json()["answers"]
    assert asked_ms <= answer["result"]["deliver_at_ms"] <= asked_ms + 9_000


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"jitter_ms": 5}, "jitter 5 ms needs a delay or a delivery time as well"),
        ({"jitter_ms": 5, "level": 2}, "jitter 5 ms is not possible on level 2"),
        ({"jitter_ms": -5, "delay_ms": 5}, "jitter -5 ms is not possible; use 0 to"),
        ({"jitter_ms": "soon", "delay_ms": 5}, "jitter_ms"),
        ({"jitter_ms": 1 << 50, "delay_ms": 5}, "is beyond the limit of 3650d"),
    ],
)
def test_a_jitter_that_cannot_be_is_refused(http, fields, words) -> None:
    answer = http.post("/v1/messages", json={"topic": "orders", "body": "x", **fields})
    assert answer.status_code in (400, 422)
    assert words in answer.json()["message"]
