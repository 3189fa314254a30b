"""What a token opens over HTTP: each page asks for its verb, its topic and its group."""

from __future__ import annotations

import asyncio

import httpx
import pytest

from helpers.open_app import OpenApp
from tidemill.broker.broker import Broker
from tidemill.core.limits import MIB
from tidemill.core.model import Draft, Once
from tidemill.core.send_answers import decode_answers
from tidemill.core.send_batch import CONTENT_TYPE, encode_drafts
from tidemill.server.security.authority import Authority
from tidemill.server.security.guard import Guard
from tidemill.server.security.rates import Rates

_FILE = """
[users.shop]
token = "shop-token-1"
[[users.shop.allow]]
verbs = ["send", "receive", "cancel", "look"]
topics = ["orders"]
groups = ["billing"]

[users.boss]
token = "boss-token-1"
[[users.boss.allow]]
verbs = ["*"]
topics = ["*"]
groups = ["*"]

[users.till]
token = "till-token-1"
[[users.till.allow]]
verbs = ["send"]
topics = ["orders"]

[users.clerk]
token = "clerk-token-1"
[[users.clerk.allow]]
verbs = ["look", "admin"]
topics = ["orders"]
groups = ["billing"]

[users.scraper]
token = "scraper-token-1"
[[users.scraper.allow]]
verbs = ["look"]
topics = ["*"]

[users.mute]
token = "mute-token-1"
"""


@pytest.fixture
def app(tmp_path):
    path = tmp_path / "permissions.toml"
    path.write_text(_FILE)
    path.chmod(0o600)
    with Broker(tmp_path / "data") as broker:
        for topic in ("orders", "bills"):
            broker.topics.create(topic)
        app = GuardedApp(broker)
        app.guard = Guard(Authority(path))
        with asyncio.Runner() as app.runner:
            yield app
            app.polls.close()


class GuardedApp(OpenApp):
    """An application with the one event loop it lives on."""

    runner: asyncio.Runner


def _ask(app: GuardedApp, method: str, path: str, user: str | None = "shop", **given) -> httpx.Response:
    async def run() -> httpx.Response:
        headers = {} if user is None else {"authorization": f"Bearer {user}-token-1"}
        headers.update(given.pop("headers", {}))
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://broker") as client:
            return await client.request(method, path, headers=headers, **given)

    return app.runner.run(run())


def test_health_and_the_empty_page_are_for_everybody_and_nothing_else(app):
    app.state = "open"
    assert _ask(app, "GET", "/healthz", None).status_code == 200
    for path in ("/", "/dashboard/app.js"):  # the page on which a token is given, without a figure in it
        assert _ask(app, "GET", path, None).status_code == 200
    for path in ("/metrics", "/v1/status", "/docs", "/openapi.json", "/v1/topics", "/v1/me", "/v1/wheel"):
        answer = _ask(app, "GET", path, None)
        assert answer.status_code == 401
        assert answer.json()["code"] == "unauthorized"
        assert answer.headers["www-authenticate"] == "Bearer"
    assert _ask(app, "GET", "/metrics").status_code == 200
    assert _ask(app, "GET", "/metrics", "mute").status_code == 403


@pytest.mark.parametrize(
    ("method", "path", "content"),
    [
        ("POST", "/v1/messages", {"topic": "TOPIC", "body": "x"}),
        ("POST", "/v1/messages/many", {"messages": [{"topic": "TOPIC", "body": "x"}]}),
        ("POST", "/v1/receive", {"topic": "TOPIC", "group": "billing"}),
        ("POST", "/v1/cancel", {"topic": "TOPIC", "key": "k"}),
        ("POST", "/v1/cancel", {"topic": "TOPIC", "from_ms": 0, "to_ms": 1}),
        ("POST", "/v1/reschedule", {"topic": "TOPIC", "key": "k", "by_ms": 1}),
        ("GET", "/v1/pending?topic=TOPIC", None),
        ("GET", "/v1/pending/count?topic=TOPIC", None),
        ("GET", "/v1/forecast?topic=TOPIC", None),
        ("GET", "/v1/forecast/window?from_ms=0&step_ms=60000&steps=1&topic=TOPIC", None),
        ("GET", "/v1/topics/TOPIC/find?key=k", None),
        ("GET", "/v1/topics/TOPIC/read", None),
    ],
)
def test_a_topic_is_open_to_those_it_is_allowed_to(app, method, path, content):
    def status(topic: str, user: str) -> int:
        body = None if content is None else _with_topic(content, topic)
        return _ask(app, method, path.replace("TOPIC", topic), user, json=body).status_code

    assert status("orders", "shop") == 200
    assert status("bills", "shop") == 403
    assert status("orders", "mute") == 403
    assert status("bills", "boss") == 200


def _with_topic(content, topic: str):
    if isinstance(content, dict):
        return {name: _with_topic(value, topic) for name, value in content.items()}
    if isinstance(content, list):
        return [_with_topic(value, topic) for value in content]
    return topic if content == "TOPIC" else content


@pytest.mark.parametrize(
    ("method", "path", "content"),
    [
        ("POST", "/v1/topics", {"name": "orders"}),
        ("POST", "/v1/topics/orders/pause", None),
        ("POST", "/v1/topics/orders/resume", None),
        ("POST", "/v1/topics/orders/limit", {"per_second": 5}),
        ("PUT", "/v1/groups/billing", {}),
        ("POST", "/v1/groups/billing/reset", {"topic": "orders", "to_ms": 0}),
        ("POST", "/v1/holds/releases/hold", None),
        ("POST", "/v1/holds/absorbing/resume", None),
        ("POST", "/v1/clock/advance", {"by_ms": 1}),
        ("POST", "/v1/backup", {"directory": "/nowhere/at/all"}),
        ("GET", "/v1/pending", None),
        ("GET", "/v1/pending/count", None),
        ("GET", "/v1/forecast/window?from_ms=0&step_ms=60000&steps=1", None),
        ("DELETE", "/v1/topics/orders", None),
    ],
)
def test_levers_are_for_those_who_run_the_broker(app, method, path, content):
    assert _ask(app, method, path, "shop", json=content).status_code == 403
    assert _ask(app, method, path, "boss", json=content).status_code not in (401, 403)


def test_a_message_is_shown_to_those_who_may_look_at_its_topic(app):
    bill = {"topic": "bills", "body": "x", "delay_ms": 60_000}
    sent = _ask(app, "POST", "/v1/messages", "boss", json=bill)
    path = f"/v1/message?handle={sent.json()['handle']}"
    assert _ask(app, "GET", path, "boss").json()["body"] == "x"
    assert _ask(app, "GET", path, "shop").status_code == 403


def test_callers_see_their_own_name_and_permissions(app):
    shop = _ask(app, "GET", "/v1/me").json()
    assert (shop["user"], shop["may"]["cancel"], shop["may"]["admin"]) == ("shop", True, False)
    assert not any(_ask(app, "GET", "/v1/me", "mute").json()["may"].values())


def test_lists_show_what_the_caller_may_see(app):
    assert [t["name"] for t in _ask(app, "GET", "/v1/topics").json()["topics"]] == ["orders"]
    assert len(_ask(app, "GET", "/v1/topics", "boss").json()["topics"]) == 2
    assert _ask(app, "GET", "/v1/topics", "mute").json()["topics"] == []


def test_the_key_of_another_user_is_another_key(app):
    (receipt,) = app.opened.broker.send([Draft("orders", b"x", delay_ms=600_000)])

    def cancel(user: str) -> list[str]:
        asked = {"handles": [str(receipt.handle)]}
        return _ask(app, "POST", "/v1/cancel", user, json=asked, headers={"idempotency-key": "k"}).json()[
            "answers"
        ]

    assert [cancel("shop"), cancel("shop"), cancel("boss")] == [
        ["cancelled"],
        ["cancelled"],
        ["already-cancelled"],
    ]


@pytest.fixture
def letters(app):
    """A dead letter from each of two topics in one group; another group has taken from both, too."""
    broker = app.opened.broker
    for group in ("billing", "auditors"):
        broker.receiver.set_group(group, starts_first=True)
    broker.send([Draft("orders", b"an order", id="o"), Draft("bills", b"a bill", id="b")])
    for topic in ("orders", "bills"):
        broker.receive(topic, "auditors")
        broker.send_back([delivery.ack_token for delivery in broker.receive(topic, "billing")], -1)
    return broker.dead_letters


def test_of_the_dead_letters_of_a_group_those_of_ones_topics_are_shown(app, letters):
    def shown(user: str, query: str = "") -> list[str]:
        answer = _ask(app, "GET", f"/v1/dead-letters{query}", user)
        return sorted(letter["topic"] for letter in answer.json()["dead_letters"])

    assert shown("clerk") == shown("clerk", "?group=billing") == ["orders"]
    assert shown("clerk", "?limit=1") == ["orders"]
    assert shown("boss") == shown("boss", "?group=billing") == ["bills", "orders"]
    assert shown("scraper") == []
    assert _ask(app, "GET", "/v1/dead-letters?group=auditors", "clerk").status_code == 403


@pytest.mark.parametrize("choice", [{"all": True}, {"ids": ["b", "o"]}])
def test_dead_letters_of_other_topics_are_not_resent(app, letters, choice):
    asked = {"group": "billing", **choice}
    assert _ask(app, "POST", "/v1/dead-letters/resend", "shop", json=asked).status_code == 403
    assert _ask(app, "POST", "/v1/dead-letters/resend", "clerk", json=asked).json() == {"resent": 1}
    assert [letter.topic for letter in letters.waiting("billing")] == ["bills"]
    assert _ask(app, "POST", "/v1/dead-letters/resend", "clerk", json=asked).json() == {"resent": 0}
    assert _ask(app, "POST", "/v1/dead-letters/resend", "boss", json=asked).json() == {"resent": 1}


def test_a_resend_does_not_name_another_topic_that_is_gone(app, letters):
    asked = {"group": "billing", "all": True}
    assert _ask(app, "POST", "/v1/dead-letters/resend", "clerk", json=asked).json() == {"resent": 1}
    app.opened.broker.topics.delete("bills")
    assert _ask(app, "POST", "/v1/dead-letters/resend", "clerk", json=asked).json() == {"resent": 0}
    assert _ask(app, "POST", "/v1/dead-letters/resend", "boss", json=asked).status_code == 404


def test_a_group_tells_how_it_stands_in_ones_own_topics_and_in_its_own(app, letters):
    app.opened.broker.receive("%DLQ%billing", "billing")
    (group,) = _ask(app, "GET", "/v1/groups", "clerk").json()["groups"]
    changed = _ask(app, "PUT", "/v1/groups/billing", "clerk", json={}).json()
    assert set(group["lag"]) == set(group["unsettled"]) == {"orders", "%DLQ%billing"}
    assert (changed["lag"], changed["unsettled"]) == (group["lag"], group["unsettled"])
    whole = _ask(app, "PUT", "/v1/groups/billing", "boss", json={}).json()
    assert set(whole["lag"]) == {"orders", "bills", "%DLQ%billing"}


def test_a_message_tells_how_ones_own_groups_stand(app, letters):
    broker = app.opened.broker
    broker.send([Draft("orders", b"x", id="timed", delay_ms=1)])
    path, polled = "/v1/message?topic=orders&message_id=timed", {"topic": "orders", "wait_ms": 5_000}
    for group in ("billing", "auditors"):
        answer = _ask(app, "POST", "/v1/receive", "boss", json={**polled, "group": group})
        assert len(answer.json()["deliveries"]) == 1

    def groups(user: str) -> list[str]:
        return sorted(one["group"] for one in _ask(app, "GET", path, user).json()["groups"])

    assert (groups("clerk"), groups("boss")) == (["billing"], ["auditors", "billing"])


def test_metrics_name_what_the_caller_may_look_at(app, letters):
    def lines(user: str, *words: str) -> int:
        text = _ask(app, "GET", "/metrics", user).text
        return sum(all(word in line for word in words) for line in text.splitlines())

    assert lines("clerk", 'topic="orders"') == lines("boss", 'topic="orders"') - 2
    assert lines("clerk", "bills") == lines("clerk", "auditors") == 0
    for user in ("boss", "scraper"):
        assert lines(user, 'group="auditors"', 'topic="bills"') == 2
        assert lines(user, "tidemill_pending_messages{") == 3


def test_handles_and_receipts_of_another_topic_are_refused(app):
    sent = {"topic": "bills", "body": "x", "delay_ms": 60_000}
    handle = _ask(app, "POST", "/v1/messages", "boss", json=sent).json()["handle"]
    for path, more in (("/v1/cancel", {}), ("/v1/reschedule", {"by_ms": 1})):
        assert _ask(app, "POST", path, json={"handles": [handle], **more}).status_code == 403
    _ask(app, "POST", "/v1/messages", "boss", json={"topic": "bills", "body": "x"})
    polled = {"topic": "bills", "group": "billing", "wait_ms": 5_000}
    (delivery,) = _ask(app, "POST", "/v1/receive", "boss", json=polled).json()["deliveries"]
    receipts = {"ack_tokens": [delivery["ack_token"]]}
    assert _ask(app, "POST", "/v1/ack", json=receipts).status_code == 403
    assert _ask(app, "POST", "/v1/extend", json={**receipts, "lease_ms": 0}).status_code == 403
    assert _ask(app, "POST", "/v1/ack", "boss", json=receipts).json()["settled"] == [True]


def test_in_a_batch_only_the_forbidden_messages_are_refused(app):
    drafts = [Draft(topic, b"x") for topic in ("orders", "bills", "orders")]
    answer = _ask(
        app, "POST", "/v1/send-batch", content=encode_drafts(drafts), headers={"content-type": CONTENT_TYPE}
    )
    codes = [getattr(one, "code", "stored") for one in decode_answers(answer.content, drafts)]
    assert codes == ["stored", "forbidden", "stored"]


def _answers(app, path: str, user: str, drafts: list[Draft]) -> list[str]:
    """What became of each of several messages: `ok`, or the code of the refusal."""
    if path == "/v1/send-batch":
        kind = {"content-type": CONTENT_TYPE}
        answer = _ask(app, "POST", path, user, content=encode_drafts(drafts), headers=kind)
        return [getattr(one, "code", "ok") for one in decode_answers(answer.content, drafts)]
    messages = [
        {
            "topic": d.topic,
            "body": d.body.decode(),
            "keys": d.keys,
            "delay_ms": d.delay_ms,
            "once": d.once.value,
        }
        for d in drafts
    ]
    answer = _ask(app, "POST", path, user, json={"messages": messages})
    return ["ok" if one["error"] is None else one["error"]["code"] for one in answer.json()["answers"]]


@pytest.mark.parametrize("path", ["/v1/send-batch", "/v1/messages/many"])
def test_replacing_what_waits_needs_cancel_too_and_is_refused_alone(app, path):
    drafts = [
        Draft("orders", b"x", id="a", keys=("k",), delay_ms=60_000),
        Draft("orders", b"x", id="b", keys=("k",), delay_ms=9_000, once=Once.REPLACE),
        Draft("orders", b"x", id="c", keys=("k",), delay_ms=9_000, once=Once.KEEP),
    ]
    assert _answers(app, path, "till", drafts) == ["ok", "forbidden", "ok"]
    (waits,) = app.opened.broker.views.pending(topic_name="orders")
    assert waits.deliver_at_ms > app.opened.broker.clock.now_ms() + 30_000
    assert _answers(app, path, "shop", drafts[1:2]) == ["ok"]


def test_replacing_with_a_single_send_needs_cancel_too(app):
    message = {"topic": "orders", "body": "x", "keys": ["k"], "delay_ms": 60_000, "once": "replace"}
    assert _ask(app, "POST", "/v1/messages", "till", json=message).status_code == 403
    assert _ask(app, "POST", "/v1/messages", "shop", json=message).status_code == 200
    assert _ask(app, "POST", "/v1/messages", "till", json={**message, "once": "keep"}).status_code == 200
    whole = {"messages": [message], "all_or_none": True}
    assert _ask(app, "POST", "/v1/messages/many", "till", json=whole).status_code == 403


def test_two_users_at_once_are_not_mixed_up(app):
    async def run() -> list[int]:
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://broker") as client:
            calls = [
                client.post(
                    "/v1/messages",
                    json={"topic": "bills", "body": "x"},
                    headers={"authorization": f"Bearer {('shop', 'boss')[number % 2]}-token-1"},
                )
                for number in range(40)
            ]
            return [answer.status_code for answer in await asyncio.gather(*calls)]

    assert app.runner.run(run()) == [403, 200] * 20


def test_a_caller_over_its_rate_is_told_when_to_retry(app):
    app.guard = Guard(rates=Rates(1))
    statuses = [_ask(app, "GET", "/v1/topics", None).status_code for _ in range(4)]
    assert statuses == [200, 200, 429, 429]
    assert _ask(app, "GET", "/healthz", None).status_code == 200


def test_beside_answers_that_are_not_read_no_large_one_is_begun_and_short_ones_go_on(app):
    large = {"topic": "orders", "body": "x" * 300_000, "keys": ["k"]}
    assert _ask(app, "POST", "/v1/messages", json=large).status_code == 200
    look = "/v1/topics/orders/find?key=k"
    with app._unread.answer(None) as others:
        others.keep(64 * MIB)
        assert _ask(app, "GET", look).status_code == 429
        for path in ("/v1/topics", "/metrics", "/v1/status"):
            assert _ask(app, "GET", path).status_code == 200
        assert _ask(app, "POST", "/v1/messages", json=large).status_code == 200
    assert app._unread.held == 0
    assert _ask(app, "GET", look).status_code == 200


@pytest.mark.parametrize(
    ("headers", "is_own"),
    [
        ({}, True),
        ({"sec-fetch-site": "same-origin", "origin": "https://proxy.example"}, True),
        ({"sec-fetch-site": "none"}, True),
        ({"sec-fetch-site": "cross-site"}, False),
        ({"sec-fetch-site": "same-site", "origin": "http://broker:3000"}, False),
        ({"origin": "http://broker"}, True),
        ({"origin": "http://other.example"}, False),
        ({"origin": "null"}, False),
    ],
)
def test_a_page_of_another_site_changes_nothing(app, headers, is_own) -> None:
    for path in ("/v1/topics/orders/pause", "/v1/topics/orders/resume"):
        answer = _ask(app, "POST", path, "boss", headers=headers)
        assert answer.status_code == (200 if is_own else 403)
    assert is_own or "cross-site" in answer.json()["message"]
    assert _ask(app, "GET", "/v1/status", "boss", headers=headers).status_code == 200
