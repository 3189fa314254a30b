"""The official Python client, unchanged, against a real `tidemill serve`."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from rocketmq import (
    ClientConfiguration,
    ConsumeResult,
    Credentials,
    FilterExpression,
    Message,
    MessageListener,
    Producer,
    PushConsumer,
    SimpleConsumer,
    TransactionChecker,
    TransactionResolution,
)
from rocketmq.v5.exception import BadRequestException, NotFoundException

import tidemill
from acceptance.official_python import start
from acceptance.serving import Served, wait_until
from tidemill.core.clock import SystemClock

_now_ms = SystemClock().now_ms
_AWAIT_SECONDS = 10
_INVISIBLE_SECONDS = 30


@pytest.fixture
def serve(tmp_path):
    """Starts a server of its own with the given topics and groups; stopped when the test is over."""
    started: list[Served] = []

    def start(*topics: str, **groups) -> Served:
        served = Served(tmp_path / f"data-{len(started)}")
        started.append(served)
        served.prepare(*topics, **groups)
        return served.start()

    yield start
    for served in started:
        served.stop()


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    served = Served(tmp_path_factory.mktemp("official") / "data")
    yield served.start()
    served.stop()


@pytest.fixture
def served(shared: Served) -> Served:
    """The server of the whole file, whose topics are empty."""
    with tidemill.Client(shared.endpoint) as ours:
        for topic in ours.topics.list():
            ours.topics.delete(topic.name)
        for name in ("orders", "payments"):
            ours.topics.create(name)
    return shared


@contextmanager
def _running(client) -> Iterator:
    start(client)
    try:
        yield client
    finally:
        client.shutdown()


def _configuration(served: Served) -> ClientConfiguration:
    return ClientConfiguration(served.endpoint, Credentials())


def _producer(served: Served, *topics: str, checker: TransactionChecker | None = None) -> Producer:
    return Producer(_configuration(served), topics or ("orders",), checker)


def _consumer(served: Served, *, topic: str = "orders", group: str = "workers", tags: str = "*"):
    subscription = {topic: FilterExpression(tags)}
    return SimpleConsumer(_configuration(served), group, subscription, await_duration=_AWAIT_SECONDS)


def _message(body: bytes, *, topic: str = "orders", properties: dict[str, str] | None = None, **fields):
    message = Message()
    message.topic, message.body = topic, body
    for name, value in fields.items():
        setattr(message, name, value)
    for name, value in (properties or {}).items():
        message.add_property(name, value)
    return message


def _receive_some(consumer) -> list[Message]:
    """What one poll brings: several messages may be due by then."""
    messages = consumer.receive(32, _INVISIBLE_SECONDS)
    assert messages, "no message came"
    return messages


def _receive(consumer, count: int = 1) -> list[Message]:
    """Exactly `count` messages; a poll may bring fewer."""
    found: list[Message] = []
    while len(found) < count:
        messages = consumer.receive(32, _INVISIBLE_SECONDS)
        assert messages, f"only {len(found)} of {count} messages came"
        found += messages
    assert len(found) == count
    return found


def test_a_message_arrives_with_all_it_had(served):
    with _running(_producer(served)) as producer, _running(_consumer(served)) as consumer:
        receipt = producer.send(_message(b"hello", tag="A", keys="k1", properties={"colour": "red"}))
        (message,) = _receive(consumer)
        assert (message.message_id, message.body, message.tag) == (receipt.message_id, b"hello", "A")
        assert (message.keys, message.properties) == ({"k1"}, {"colour": "red"})
        assert (message.delivery_attempt, message.corrupted) == (1, False)
        consumer.ack(message)
        with pytest.raises(BadRequestException, match="INVALID_RECEIPT_HANDLE"):
            consumer.ack(message)


def test_a_reserved_property_is_refused(served):
    with _running(_producer(served)) as producer, _running(_consumer(served, tags="||A||||B")) as consumer:
        for name in ("UNIQ_KEY", "__released_at"):
            with pytest.raises(BadRequestException, match=f"ILLEGAL_MESSAGE_PROPERTY_KEY.*{name}"):
                producer.send(_message(b"forged", properties={name: "mine"}))
        producer.send(_message(b"fine", tag="B", properties={"__mine": "yes"}))
        (message,) = _receive(consumer)
        assert message.properties == {"__mine": "yes"}


def test_a_client_in_a_namespace_sees_the_names_that_it_used(served):
    with tidemill.Client(served.endpoint) as ours:
        ours.topics.create("shop%orders")
    configuration = ClientConfiguration(served.endpoint, Credentials(), "shop")
    consumer = SimpleConsumer(configuration, "workers", {"orders": FilterExpression()}, _AWAIT_SECONDS)
    with _running(Producer(configuration, ("orders",))) as producer, _running(consumer):
        recalled = producer.send(_message(b"recalled", properties={"__delay_ms": "600000"}))
        producer.recall_message("orders", recalled.recall_handle)
        producer.send(_message(b"ours"))
        (message,) = _receive(consumer)
        assert (message.topic, message.body) == ("orders", b"ours")
        consumer.ack(message)
    with tidemill.Client(served.endpoint) as ours:
        (group,) = [group for group in ours.groups.list() if group.name == "shop%workers"]
        assert (group.lag, group.unsettled) == ({"shop%orders": 0}, {"shop%orders": 0})


def test_only_the_tags_asked_for_arrive(served):
    with _running(_producer(served)) as producer, _running(_consumer(served, tags="A || B")) as consumer:
        for tag in ("A", "C", "B"):
            producer.send(_message(tag.encode(), tag=tag))
        assert {m.body for m in _receive(consumer, 2)} == {b"A", b"B"}


def test_delayed_messages_are_never_early_and_say_how_they_travelled(served):
    with _running(_producer(served)) as producer, _running(_consumer(served)) as consumer:
        sent_ms = _now_ms()
        due_s = sent_ms // 1000 + 2
        producer.send(_message(b"time", delivery_timestamp=due_s))
        producer.send(_message(b"delay", properties={"__delay_ms": "300"}))
        producer.send(_message(b"level", properties={"DELAY": "1"}))
        arrived: dict[bytes, tuple[int, dict[str, str]]] = {}
        while len(arrived) < 3:
            arrived.update({m.body: (_now_ms(), m.properties) for m in _receive_some(consumer)})
    assert arrived[b"time"][0] >= due_s * 1000
    assert arrived[b"delay"][0] >= sent_ms + 300
    assert arrived[b"level"][0] >= sent_ms + 1000
    for body, (at_ms, properties) in arrived.items():
        assert int(properties["__due_at"]) <= int(properties["__released_at"]) <= at_ms
        assert properties["__runner"] == ("level" if body == b"level" else "near")


def test_timer_properties_time_a_message_of_any_topic(served):
    at_ms = _now_ms() + 900
    sent = {"TIMER_DELAY_SEC": "1", "TIMER_DELAY_MS": "700", "TIMER_DELIVER_MS": str(at_ms)}
    arrived: dict[str, dict[str, str]] = {}
    with _running(_producer(served)) as producer, _running(_consumer(served)) as consumer:
        for name, text in sent.items():
            producer.send(_message(name.encode(), properties={name: text}))
            for wrong in ("-5", "1.5", "soon"):
                with pytest.raises(BadRequestException, match=f"ILLEGAL_DELIVERY_TIME.*{name} is '{wrong}'"):
                    producer.send(_message(b"refused", properties={name: wrong}))
        while len(arrived) < len(sent):
            arrived.update({m.body.decode(): m.properties for m in _receive_some(consumer)})
            assert int(arrived.get("TIMER_DELIVER_MS", {}).get("__due_at", at_ms)) == at_ms
    for name, delay_ms in (("TIMER_DELAY_SEC", 1000), ("TIMER_DELAY_MS", 700)):
        assert int(arrived[name]["__due_at"]) == int(arrived[name]["__stored_at"]) + delay_ms
    assert not [name for name in sent if name in arrived[name]]


def test_a_delay_topic_takes_messages_that_properties_make_timed(serve):
    served = serve(delay_topics=("delayed",))
    consumer = _consumer(served, topic="delayed")
    with _running(_producer(served, "delayed")) as producer, _running(consumer):
        begun_ms = _now_ms()
        sent = {
            b"seconds": ({"TIMER_DELAY_SEC": "1"}, 1000),
            b"milliseconds": ({"TIMER_DELAY_MS": "700"}, 700),
            b"moment": ({"TIMER_DELIVER_MS": str(begun_ms + 900)}, 900),
            b"delay": ({"__delay_ms": "300"}, 300),
            b"level": ({"DELAY": "1"}, 1000),
        }
        for body, (properties, _) in sent.items():
            assert producer.send(_message(body, topic="delayed", properties=properties)).recall_handle
        asked = producer.send_async(_message(b"never", topic="delayed", properties={"TIMER_DELAY_MS": "800"}))
        marker = {"TIMER_DEL_UNIQKEY": asked.result(_AWAIT_SECONDS).message_id}
        producer.send(_message(b"marker", topic="delayed", properties=marker))
        arrived: dict[bytes, tuple[int, dict[str, str]]] = {}
        while len(arrived) < len(sent):
            arrived.update({m.body: (_now_ms(), m.properties) for m in _receive_some(consumer)})
    assert arrived.keys() == sent.keys()
    for body, (at_ms, properties) in arrived.items():
        assert at_ms >= begun_ms + sent[body][1], body
        assert not [name for name in properties if name.startswith("TIMER_")]
    assert arrived[b"moment"][1]["__due_at"] == str(begun_ms + 900)


def test_what_the_client_lets_through_is_still_checked_by_the_broker(serve):
    served = serve(delay_topics=("delayed",))
    at_s = _now_ms() // 1000 + 60
    with _running(_producer(served, "delayed")) as producer:
        for properties, fields, complaint in (
            ({}, {}, "CONFLICT_WITH_TYPE.*takes delay messages, this one is normal"),
            ({"TIMER_DELAY_SEC": "soon"}, {}, "ILLEGAL_DELIVERY_TIME.*TIMER_DELAY_SEC is 'soon'"),
            ({"TIMER_DELAY_SEC": "9" * 12}, {}, "ILLEGAL_DELIVERY_TIME.*beyond the limit of 3650d"),
            ({"TIMER_DELAY_SEC": "1", "DELAY": "1"}, {}, "ILLEGAL_DELIVERY_TIME.*conflicting times"),
            ({"TIMER_DELAY_SEC": "1"}, {"delivery_timestamp": at_s}, "conflicting times"),
        ):
            with pytest.raises(BadRequestException, match=complaint):
                producer.send(_message(b"refused", topic="delayed", properties=properties, **fields))


def test_an_absurd_delivery_time_is_refused(served):
    with _running(_producer(served)) as producer:
        with pytest.raises(BadRequestException, match="ILLEGAL_DELIVERY_TIME"):
            producer.send(_message(b"milliseconds as seconds", delivery_timestamp=_now_ms()))


def test_recall_answers_definitely(served):
    with _running(_producer(served)) as producer, _running(_consumer(served)) as consumer:
        receipt = producer.send(_message(b"never", delivery_timestamp=_now_ms() // 1000 + 600))
        assert producer.recall_message("orders", receipt.recall_handle) == receipt.message_id
        assert producer.recall_message("orders", receipt.recall_handle) == receipt.message_id
        late = producer.send(_message(b"soon", properties={"__delay_ms": "1"}))
        assert [m.body for m in _receive(consumer)] == [b"soon"]
        with pytest.raises(BadRequestException, match="already released"):
            producer.recall_message("orders", late.recall_handle)
        with pytest.raises(BadRequestException, match="not a handle"):
            producer.recall_message("orders", "nonsense")
        with pytest.raises(NotFoundException):
            producer.recall_message("payments", receipt.recall_handle)


def test_an_unknown_topic_is_said_so(served, caplog):
    with _running(_producer(served)) as producer:
        with pytest.raises(Exception, match="failed to fetch topic:missing route"):
            producer.send(_message(b"x", topic="missing"))
    assert "TOPIC_NOT_FOUND" in caplog.text
    assert "tidemill topics create missing" in caplog.text


def test_a_message_given_back_comes_again(served):
    with _running(_producer(served)) as producer, _running(_consumer(served)) as consumer:
        producer.send(_message(b"again"))
        (first,) = _receive(consumer)
        given_back_ms = _now_ms()
        consumer.change_invisible_duration(first, 1)
        (second,) = _receive(consumer)
        assert _now_ms() >= given_back_ms + 1000
        assert (second.body, second.delivery_attempt) == (b"again", 2)
        consumer.ack(second)


def test_fifo_keeps_the_order_of_each_group(served):
    with _running(_producer(served)) as producer, _running(_consumer(served)) as consumer:
        for number in range(10):
            for group in ("a", "b"):
                producer.send(_message(f"{group}{number}".encode(), message_group=group))
        messages = _receive(consumer, 20)
    for group in (b"a", b"b"):
        assert [m.body for m in messages if m.body[:1] == group] == [b"%b%d" % (group, n) for n in range(10)]


class _Checker(TransactionChecker):
    def check(self, message: Message) -> TransactionResolution:
        return TransactionResolution.COMMIT


@pytest.mark.slow
def test_transactions_commit_roll_back_and_are_asked_about(served):
    consumer = _consumer(served, topic="payments")
    with _running(_producer(served, "payments", checker=_Checker())) as producer, _running(consumer):
        for body in (b"committed", b"rolled back", b"forgotten"):
            transaction = producer.begin_transaction()
            producer.send(_message(body, topic="payments"), transaction)
            if body == b"committed":
                transaction.commit()
            elif body == b"rolled back":
                transaction.rollback()
        assert [m.body for m in _receive(consumer)] == [b"committed"]
        assert [m.body for m in _receive(consumer)] == [b"forgotten"]


# -- push consumers -------------------------------------------------------------------------------


class _Listener(MessageListener):
    """Notes what comes; fails messages that begin with `fail` a given number of times."""

    def __init__(self, failures: int = 0) -> None:
        self._failures = failures
        self._lock = threading.Lock()
        self.seen: list[tuple[bytes, int, int]] = []  # body, attempt, when

    def consume(self, message: Message) -> ConsumeResult:
        with self._lock:
            times = sum(body == message.body for body, _, _ in self.seen)
            self.seen.append((message.body, message.delivery_attempt, _now_ms()))
        fails = message.body.startswith(b"fail") and times < self._failures
        return ConsumeResult.FAILURE if fails else ConsumeResult.SUCCESS

    def bodies(self) -> list[bytes]:
        return [body for body, _, _ in self.seen]


def _push(served: Served, listener: _Listener, group: str = "pushed") -> PushConsumer:
    return PushConsumer(_configuration(served), group, listener, {"orders": FilterExpression()})


def test_a_push_consumer_is_given_messages_and_retries(serve):
    served = serve("orders", groups=("pushed",), backoff="2s")
    listener = _Listener(failures=1)
    with _running(_producer(served)) as producer, _running(_push(served, listener)):
        producer.send(_message(b"fine"))
        producer.send(_message(b"fail once"))
        producer.send(_message(b"later", properties={"__delay_ms": "1500"}))
        wait_until(lambda: len(listener.seen) == 4, f"four deliveries, got {listener.seen}")
    attempts = [(attempt, at_ms) for body, attempt, at_ms in listener.seen if body == b"fail once"]
    assert [attempt for attempt, _ in attempts] == [1, 2]
    assert 1_900 <= attempts[1][1] - attempts[0][1] < 9_000


def test_what_a_fifo_push_consumer_gives_up_on_becomes_a_dead_letter(serve):
    served = serve("orders", fifo_groups=("ordered",), attempts_max=2, backoff="2s")
    listener = _Listener(failures=100)
    letters = _consumer(served, topic="%DLQ%ordered", group="burial")
    with _running(_producer(served)) as producer, _running(_push(served, listener, "ordered")):
        for body in (b"first", b"fail for good", b"last"):
            producer.send(_message(body, message_group="a"))
        wait_until(lambda: b"last" in listener.bodies(), "the messages behind the failing one")
    assert listener.bodies() == [b"first", b"fail for good", b"fail for good", b"last"]
    failed = [at_ms for body, _, at_ms in listener.seen if body == b"fail for good"]
    assert 1_900 <= failed[1] - failed[0] < 9_000  # it pauses by itself, as the group's table says
    with _running(letters):
        (letter,) = _receive(letters)
    assert letter.body == b"fail for good"
    assert letter.properties["DLQ_ORIGIN_TOPIC"] == "orders"


def test_attempts_used_up_end_among_the_dead_letters(serve):
    served = serve("orders", fifo_groups=("workers",), attempts_max=1)
    with _running(_producer(served)) as producer, _running(_consumer(served)) as consumer:
        producer.send(_message(b"poison"))
        (message,) = _receive(consumer)
        consumer.change_invisible_duration(message, 1)
        assert consumer.receive(1, _INVISIBLE_SECONDS) == []
    with _running(_consumer(served, topic="%DLQ%workers", group="burial")) as letters:
        assert [m.body for m in _receive(letters)] == [b"poison"]


# -- restarts -------------------------------------------------------------------------------------


def _is_sent(producer: Producer, body: bytes) -> bool:
    """After an outage the client's channel pauses before it connects again, and its three attempts do not."""
    try:
        producer.send(_message(body))
    except Exception as fault:
        if "Connection refused" not in str(fault):
            raise
        return False
    return True


@pytest.mark.parametrize("how", ["stop", "kill"])
def test_clients_go_on_when_the_broker_restarts_under_them(served, how):
    listener = _Listener()
    with _running(_producer(served)) as producer, _running(_push(served, listener)):
        producer.send(_message(b"before"))
        wait_until(lambda: b"before" in listener.bodies(), "the first message")
        due_s = _now_ms() // 1000 + 3
        producer.send(_message(b"waiting", delivery_timestamp=due_s))
        if how == "stop":
            assert served.stop() == 0
            served.start()
        else:
            (old,) = served.broker_pids()
            served.kill_broker()
            wait_until(lambda: old not in served.broker_pids() and served.is_ready(), "a new broker")
        wait_until(lambda: _is_sent(producer, b"after"), "a send after the restart")
        wait_until(lambda: {b"waiting", b"after"} <= set(listener.bodies()), "what came after the restart")
    assert sorted(listener.bodies()) == [b"after", b"before", b"waiting"]
    (at_ms,) = [at_ms for body, _, at_ms in listener.seen if body == b"waiting"]
    assert at_ms >= due_s * 1000
