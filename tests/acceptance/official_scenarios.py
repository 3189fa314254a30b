"""What every official client must be able to do: the same scenarios for each language.

A test module gives the fixture `client` (an `OfficialClient`) and takes all tests from here.
"""

from __future__ import annotations

import re
import urllib.error
import urllib.request

import pytest

from acceptance.official_client import ClientFault, OfficialClient, Seen
from acceptance.secured import PERMISSIONS, SECRET, Secured
from acceptance.serving import Served, wait_until
from tidemill.core.clock import SystemClock
from tidemill.core.limits import BODY_BYTES_MAX
from tidemill.core.property_names import RESERVED_PROPERTIES

_now_ms = SystemClock().now_ms
_TOPICS = (
    "plain",
    "tagged",
    "forwarded",
    "timed",
    "by-property",
    "high",
    "recalled",
    "again",
    "ordered",
    "payments",
    "pushed",
    "poison",
    "letters",
    "largest",
    "shop%named",
)
_POISON_ATTEMPTS = 2


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    served = Served(tmp_path_factory.mktemp("official") / "data", "--pipeline", "embedded")
    served.prepare(
        *_TOPICS,
        delay_topics=("delayed",),
        groups=("listeners",),
        fifo_groups=("in-order", "burdened"),
        attempts_max=_POISON_ATTEMPTS,
        backoff="2s",  # neither the default nor what the clients do by themselves
    )
    yield served.start()
    served.stop()


def _is_on_time(message: Seen, due_ms: int) -> bool:
    """Neither the broker's word nor our own clock says that it was early."""
    properties = message.properties
    return (
        int(properties["__due_at"]) == due_ms
        and due_ms <= int(properties["__released_at"]) <= message.at_ms
        and due_ms <= message.at_ms
    )


def test_a_message_arrives_with_all_it_had(client: OfficialClient, served: Served) -> None:
    producer, consumer = client.producer(served.endpoint, "plain"), client.simple(served.endpoint, "plain")
    receipt = client.send(producer, "plain", "hello", tag="A", key="k1", **{"p.colour": "red"})
    (message,) = client.receive(consumer)
    assert (message.id, message.body) == (receipt["message_id"], "hello")
    assert (message.fields["tag"], message.fields["keys"]) == ("A", "k1")
    assert (message.properties["colour"], message.attempt) == ("red", 1)
    assert message.fields["is_corrupted"] != "true"
    client.ask("ack", name=consumer, receipt=message.receipt)
    with pytest.raises(ClientFault, match=r"(?i)receipt"):
        client.ask("ack", name=consumer, receipt=message.receipt)


def test_a_client_in_a_namespace_sends_and_receives_by_its_own_names(
    client: OfficialClient, served: Served
) -> None:
    producer = client.producer(served.endpoint, "named", namespace="shop")
    consumer = client.simple(served.endpoint, "named", namespace="shop")
    pushed = client.push(served.endpoint, "named", "pushers", namespace="shop")
    receipt = client.send(producer, "named", "ours")
    (message,) = client.receive(consumer)
    assert (message.id, message.body) == (receipt["message_id"], "ours")
    client.ask("ack", name=consumer, receipt=message.receipt)
    wait_until(lambda: [seen.body for seen in client.seen(pushed)] == ["ours"], "the message to be pushed")


def test_only_the_tags_asked_for_arrive(client: OfficialClient, served: Served) -> None:
    producer = client.producer(served.endpoint, "tagged")
    consumer = client.simple(served.endpoint, "tagged", tags="A || B")
    for tag in "ACB":
        client.send(producer, "tagged", tag, tag=tag)
    assert {m.body for m in client.receive(consumer, 2)} == {"A", "B"}


def test_empty_parts_of_a_tag_expression_mean_nothing(client: OfficialClient, served: Served) -> None:
    producer = client.producer(served.endpoint, "tagged")
    consumer = client.simple(served.endpoint, "tagged", "loosely", tags="||A||||B")
    for tag in "ACB":
        client.send(producer, "tagged", f"{tag} again", tag=tag)
    bodies: set[str] = set()
    while not {"A again", "B again"} <= bodies:
        found = client.poll(consumer)
        assert found
        bodies |= {message.body for message in found}
    assert not any(body.startswith("C") for body in bodies)


def test_reserved_properties_are_refused_and_the_others_may_be_sent_on(
    client: OfficialClient, served: Served
) -> None:
    producer = client.producer(served.endpoint, "forwarded")
    consumer = client.simple(served.endpoint, "forwarded")
    for name in ("UNIQ_KEY", "__released_at", "DLQ_ORIGIN_TOPIC"):
        with pytest.raises(ClientFault, match=name):
            client.send(producer, "forwarded", "forged", **{f"p.{name}": "mine"})
    client.send(producer, "forwarded", "first", **{"p.colour": "red", "p.__delay_ms": "100"})
    (first,) = client.receive(consumer)
    assert "__released_at" in first.properties
    own = {name: text for name, text in first.properties.items() if name not in RESERVED_PROPERTIES}
    assert own == {"colour": "red"}
    client.send(producer, "forwarded", "on", **{f"p.{name}": text for name, text in own.items()})
    (again,) = client.receive(consumer)
    assert (again.body, again.properties["colour"]) == ("on", "red")


def test_delayed_messages_are_never_early(client: OfficialClient, served: Served) -> None:
    producer, consumer = client.producer(served.endpoint, "timed"), client.simple(served.endpoint, "timed")
    begun_ms = _now_ms()
    due = {f"at {offset}": begun_ms + offset for offset in (700, 1234, 1999)}
    for body, at_ms in due.items():
        assert client.send(producer, "timed", body, deliver_at_ms=at_ms)["handle"]
    client.send(producer, "timed", "delay", **{"p.__delay_ms": "300"})
    client.send(producer, "timed", "level", **{"p.DELAY": "1"})
    arrived = {m.body: m for m in client.receive(consumer, 5)}
    assert all(_is_on_time(arrived[body], at_ms) for body, at_ms in due.items())
    assert arrived["delay"].at_ms >= begun_ms + 300
    assert arrived["level"].at_ms >= begun_ms + 1000


def test_timer_properties_time_a_message_of_any_topic(client: OfficialClient, served: Served) -> None:
    producer = client.producer(served.endpoint, "by-property")
    consumer = client.simple(served.endpoint, "by-property")
    at_ms = _now_ms() + 900
    sent = {"TIMER_DELAY_SEC": "1", "TIMER_DELAY_MS": "700", "TIMER_DELIVER_MS": str(at_ms)}
    for name, text in sent.items():
        assert client.send(producer, "by-property", name, **{f"p.{name}": text})["handle"]
    arrived = {m.body: m for m in client.receive(consumer, len(sent))}
    assert arrived.keys() == sent.keys()
    assert _is_on_time(arrived["TIMER_DELIVER_MS"], at_ms)
    for name, delay_ms in (("TIMER_DELAY_SEC", 1000), ("TIMER_DELAY_MS", 700)):
        properties = arrived[name].properties
        assert int(properties["__due_at"]) == int(properties["__stored_at"]) + delay_ms
        assert name not in properties
    for name in sent:
        for text in ("-5", "1.5", "soon"):
            with pytest.raises(ClientFault, match=f"{name} is '{text}'; give .* as a whole number"):
                client.send(producer, "by-property", "refused", **{f"p.{name}": text})


def test_a_level_above_the_highest_is_counted(client: OfficialClient, served: Served) -> None:
    producer = client.producer(served.endpoint, "high")
    handle = client.send(producer, "high", "never", **{"p.DELAY": "99"})["handle"]
    client.ask("recall", name=producer, topic="high", handle=handle)
    with urllib.request.urlopen(f"http://{served.endpoint}/metrics", timeout=10) as answer:
        lines = answer.read().decode().splitlines()
    assert any(
        re.fullmatch(r'tidemill_levels_clamped_total\{.*topic="high".*\} 1(\.0)?', line) for line in lines
    )
    assert "topic 'high': " in served.log()


def test_a_delay_topic_takes_messages_that_properties_make_timed(
    client: OfficialClient, served: Served
) -> None:
    producer = client.producer(served.endpoint, "delayed")
    consumer = client.simple(served.endpoint, "delayed")
    begun_ms = _now_ms()
    at_ms = begun_ms + 900
    sent = {
        "seconds": ({"p.TIMER_DELAY_SEC": "1"}, 1000),
        "milliseconds": ({"p.TIMER_DELAY_MS": "700"}, 700),
        "moment": ({"p.TIMER_DELIVER_MS": str(at_ms)}, 900),
        "delay": ({"p.__delay_ms": "300"}, 300),
        "level": ({"p.DELAY": "1"}, 1000),
        "time": ({"deliver_at_ms": at_ms}, 900),
    }
    for body, (fields, _) in sent.items():
        assert client.send(producer, "delayed", body, **fields)["handle"], body
    recalled = client.send(producer, "delayed", "never", **{"p.TIMER_DELAY_MS": "800"})
    client.send(producer, "delayed", "marker", **{"p.TIMER_DEL_UNIQKEY": recalled["message_id"]})
    arrived = {m.body: m for m in client.receive(consumer, len(sent))}
    assert arrived.keys() == sent.keys()
    for body, message in arrived.items():
        assert message.at_ms >= begun_ms + sent[body][1], body
        assert not [name for name in message.properties if name.startswith("TIMER_")]
    assert _is_on_time(arrived["moment"], at_ms)


def test_what_a_client_lets_through_is_still_checked_by_the_broker(
    client: OfficialClient, served: Served
) -> None:
    producer = client.producer(served.endpoint, "delayed")
    for fields, complaint in (
        ({}, "takes delay messages, this one is normal"),
        ({"p.TIMER_DELAY_SEC": "soon"}, "TIMER_DELAY_SEC is 'soon'"),
        ({"p.TIMER_DELAY_SEC": "9" * 12}, "beyond the limit of 3650d"),
        ({"p.TIMER_DELAY_SEC": "1", "p.TIMER_DELAY_MS": "999"}, "conflicting times"),
        ({"p.TIMER_DELAY_SEC": "1", "deliver_at_ms": _now_ms() + 1000}, "conflicting times"),
    ):
        with pytest.raises(ClientFault, match=complaint):
            client.send(producer, "delayed", "refused", **fields)


def test_a_delivery_time_in_the_past_is_now(client: OfficialClient, served: Served) -> None:
    producer = client.producer(served.endpoint, "letters")
    consumer = client.simple(served.endpoint, "letters", "past")
    client.send(producer, "letters", "late", deliver_at_ms=_now_ms() - 10_000)
    assert [m.body for m in client.receive(consumer)] == ["late"]


def test_recall_answers_definitely(client: OfficialClient, served: Served) -> None:
    producer = client.producer(served.endpoint, "recalled")
    consumer = client.simple(served.endpoint, "recalled")
    receipt = client.send(producer, "recalled", "never", deliver_at_ms=_now_ms() + 600_000)
    asked = {"name": producer, "topic": "recalled"}
    for _ in range(2):
        (answer,) = client.ask("recall", **asked, handle=receipt["handle"])
        assert answer["message_id"] == receipt["message_id"]
    soon = client.send(producer, "recalled", "soon", deliver_at_ms=_now_ms() + 200)
    assert [m.body for m in client.receive(consumer)] == ["soon"]
    with pytest.raises(ClientFault, match="already released"):
        client.ask("recall", **asked, handle=soon["handle"])
    with pytest.raises(ClientFault, match="not a handle"):
        client.ask("recall", **asked, handle="nonsense")
    with pytest.raises(ClientFault, match="is of topic"):
        client.ask("recall", name=producer, topic="plain", handle=receipt["handle"])


def test_a_message_given_back_comes_again(client: OfficialClient, served: Served) -> None:
    producer, consumer = client.producer(served.endpoint, "again"), client.simple(served.endpoint, "again")
    client.send(producer, "again", "again")
    (first,) = client.receive(consumer)
    given_back_ms = _now_ms()
    client.ask("retry_in", name=consumer, receipt=first.receipt, delay_ms=1000)
    (second,) = client.receive(consumer)
    assert _now_ms() >= given_back_ms + 1000
    assert (second.body, second.attempt) == ("again", 2)
    client.ask("ack", name=consumer, receipt=second.receipt)


def test_fifo_keeps_the_order_of_each_group(client: OfficialClient, served: Served) -> None:
    producer = client.producer(served.endpoint, "ordered")
    push = client.push(served.endpoint, "ordered", "in-order")
    sent = [f"{group}{number}" for number in range(8) for group in "ab"]
    for body in sent:
        client.send(producer, "ordered", body, message_group=body[0])
    wait_until(lambda: len(client.seen(push)) >= len(sent), "all of both groups")
    bodies = [m.body for m in client.seen(push)]
    for group in "ab":
        assert [b for b in bodies if b[0] == group] == [b for b in sent if b[0] == group]


@pytest.mark.slow
def test_transactions_commit_roll_back_and_are_asked_about(client: OfficialClient, served: Served) -> None:
    producer = client.producer(served.endpoint, "payments", checker="COMMIT")
    consumer = client.simple(served.endpoint, "payments", await_ms=20_000)
    for body in ("rolled back", "forgotten", "committed"):
        message_id = client.send(producer, "payments", body, in_transaction="yes")["message_id"]
        if body != "forgotten":
            end = "commit" if body == "committed" else "roll_back"
            client.ask(end, name=producer, message_id=message_id)
    assert [m.body for m in client.receive(consumer)] == ["committed"]
    assert [m.body for m in client.receive(consumer)] == ["forgotten"]


def test_a_push_consumer_is_given_messages_and_retries(client: OfficialClient, served: Served) -> None:
    producer = client.producer(served.endpoint, "pushed")
    push = client.push(served.endpoint, "pushed", "listeners", failures=1)
    client.send(producer, "pushed", "fine")
    client.send(producer, "pushed", "fail once")
    due_ms = _now_ms() + 1500
    client.send(producer, "pushed", "later", deliver_at_ms=due_ms)
    wait_until(lambda: len(client.seen(push)) == 4, f"four deliveries, got {client.seen(push)}")
    failed = [m for m in client.seen(push) if m.body == "fail once"]
    assert [m.attempt for m in failed] == [1, 2]
    assert 1_900 <= failed[1].at_ms - failed[0].at_ms < 9_000
    (later,) = [m for m in client.seen(push) if m.body == "later"]
    assert _is_on_time(later, due_ms)


def test_the_largest_message_keeps_no_other_from_arriving(client: OfficialClient, served: Served) -> None:
    """Node's gRPC library refuses it, and with it whatever is in the same answer."""
    producer = client.producer(served.endpoint, "largest")
    others = [f"other {number}" for number in range(6)]
    for body in (*others[:3], "L" * BODY_BYTES_MAX, *others[3:]):
        client.send(producer, "largest", body)
    push = client.push(served.endpoint, "largest", "large")
    wait_until(lambda: {m.body for m in client.seen(push)} >= set(others), "all but the largest")
    assert {m.attempt for m in client.seen(push) if m.body in others} == {1}


def test_what_a_fifo_push_consumer_gives_up_on_becomes_a_dead_letter(
    client: OfficialClient, served: Served
) -> None:
    producer = client.producer(served.endpoint, "poison")
    push = client.push(served.endpoint, "poison", "burdened", failures=100)
    for body in ("first", "fail for good", "last"):
        client.send(producer, "poison", body, message_group="a")
    wait_until(lambda: "last" in [m.body for m in client.seen(push)], "the message behind the failing one")
    bodies = [m.body for m in client.seen(push)]
    assert bodies == ["first", *["fail for good"] * _POISON_ATTEMPTS, "last"], bodies
    failed = [m.at_ms for m in client.seen(push) if m.body == "fail for good"]
    assert 1_900 <= failed[1] - failed[0] < 9_000  # it pauses by itself, as the group's table says
    letters = client.simple(served.endpoint, "%DLQ%burdened", "burial")
    (letter,) = client.receive(letters)
    assert letter.body == "fail for good"
    assert letter.properties["DLQ_ORIGIN_TOPIC"] == "poison"


def test_attempts_used_up_end_among_the_dead_letters(client: OfficialClient, served: Served) -> None:
    """By the broker: a simple consumer that never acknowledges."""
    producer = client.producer(served.endpoint, "letters")
    consumer = client.simple(served.endpoint, "letters", "in-order", await_ms=3_000)
    client.send(producer, "letters", "never settled")
    for attempt in range(1, _POISON_ATTEMPTS + 1):
        message = next(m for m in _until_seen(client, consumer, "never settled"))
        assert message.attempt == attempt
        client.ask("retry_in", name=consumer, receipt=message.receipt, delay_ms=1000)
    assert client.poll(consumer) == []  # which moves it
    letters = client.simple(served.endpoint, "%DLQ%in-order", "burial")
    assert [m.body for m in client.receive(letters)] == ["never settled"]


def _until_seen(client: OfficialClient, consumer: str, body: str) -> list[Seen]:
    """Poll, settling everything else, until a message with this body came."""
    while True:
        polled = client.poll(consumer)
        assert polled, f"{body!r} did not come"
        for message in polled:
            if message.body != body:
                client.ask("ack", name=consumer, receipt=message.receipt)
        if found := [m for m in polled if m.body == body]:
            return found


def test_clients_speak_tls_and_sign_with_their_keys(client: OfficialClient, tmp_path) -> None:
    """Also while a user is taken out of the permissions file, and when it is back."""
    served = Secured(tmp_path / "data", "--flight-port", "-1")
    served.prepare("orders", "kept")
    served.start()
    try:
        client.roots.write_bytes(served.ca.read_bytes())
        keys = {"tls": "yes", "access_key": "shop-ak", "secret_key": SECRET}
        producer = client.producer(served.tls_endpoint, "orders", **keys)
        push = client.push(served.tls_endpoint, "orders", "workers", **keys)
        simple = client.simple(served.tls_endpoint, "kept", "workers", **keys)
        due_ms = _now_ms() + 500
        client.send(producer, "orders", "later", deliver_at_ms=due_ms)
        never = client.send(producer, "orders", "never", deliver_at_ms=due_ms + 1000)
        client.ask("recall", name=producer, topic="orders", handle=never["handle"])
        wait_until(lambda: [m.body for m in client.seen(push)] == ["later"], "the push consumer's")
        assert _is_on_time(client.seen(push)[0], due_ms)
        served.permissions.write_text(PERMISSIONS.replace("shop-ak", "other-ak"))
        wait_until(lambda: _has_read_permissions(served), "the file")
        with pytest.raises(ClientFault, match="UNAUTHORIZED"):
            client.send(producer, "orders", "refused")
        with pytest.raises(ClientFault, match="UNAUTHORIZED"):
            client.poll(simple)
        served.permissions.write_text(PERMISSIONS)
        _send_until_taken(client, producer, "again")
        wait_until(lambda: [m.body for m in client.seen(push)] == ["later", "again"], "what came after")
        for name in (producer, simple):
            client.ask("close", name=name)
    finally:
        served.stop()


def _has_read_permissions(served: Served) -> bool:
    # Any call makes the broker look at its file, at most once a second.
    try:
        urllib.request.urlopen(f"http://{served.endpoint}/v1/status", timeout=5).close()
    except urllib.error.HTTPError as refused:
        refused.close()
    except OSError:
        return False
    return "permissions read again" in served.log()


@pytest.mark.parametrize("how", ["stop", "kill"])
def test_clients_go_on_when_the_broker_restarts_under_them(
    client: OfficialClient, tmp_path, how: str
) -> None:
    served = Served(tmp_path / "data", "--pipeline", "embedded")
    served.prepare("orders")
    served.start()
    try:
        producer = client.producer(served.endpoint, "orders")
        push = client.push(served.endpoint, "orders", "pushed")
        client.send(producer, "orders", "before")
        wait_until(lambda: [m.body for m in client.seen(push)] == ["before"], "the first message")
        due_ms = _now_ms() + 2500
        client.send(producer, "orders", "waiting", deliver_at_ms=due_ms)
        cancelled = client.send(producer, "orders", "cancelled", deliver_at_ms=due_ms + 1)["handle"]
        client.ask("recall", name=producer, topic="orders", handle=cancelled)
        if how == "stop":
            assert served.stop() == 0
            served.start()
        else:
            (old,) = served.broker_pids()
            served.kill_broker()
            wait_until(lambda: old not in served.broker_pids() and served.is_ready(), "a new broker")
        _send_until_taken(client, producer, "after")
        bodies = {"before", "waiting", "after"}
        wait_until(lambda: {m.body for m in client.seen(push)} >= bodies, "what came after the restart")
        assert {m.body for m in client.seen(push)} == bodies
        waiting = [m for m in client.seen(push) if m.body == "waiting"]
        assert all(_is_on_time(message, due_ms) for message in waiting)
    finally:
        served.stop()


def _send_until_taken(client: OfficialClient, producer: str, body: str) -> None:
    """A client may need a moment to find the new broker; the user's program tries again."""
    faults: list[ClientFault] = []

    def is_taken() -> bool:
        try:
            client.send(producer, "orders", body)
        except ClientFault as fault:
            faults.append(fault)
            return False
        return True

    wait_until(is_taken, f"a send to the new broker: {faults}")
