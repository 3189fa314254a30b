"""One retry rule for a group: on every path, the pause after failure n is entry n of the group's table."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import tidemill
from helpers.asgi_caller import AsgiCaller
from helpers.grpc_call import ConsumerCall, DeliveryStream
from helpers.open_app import OpenApp
from helpers.small_broker import SmallBroker
from tidemill.broker.consume.retries import SendBackAnswer, pause_after
from tidemill.client.calls import Call
from tidemill.client.consume_verbs import ConsumeVerbs
from tidemill.client.operations import Carrier, Operations
from tidemill.client.verb import Blocking
from tidemill.core.answers import Message
from tidemill.core.config import BrokerSettings
from tidemill.core.errors import RequestError
from tidemill.core.model import Delivery
from tidemill.server.grpc.consuming import Consuming
from tidemill.server.grpc.leases import Leases
from tidemill.server.grpc.protocol import Code, definition, service
from tidemill.server.grpc.telemetry import Sessions
from tidemill.store.consumers.consumer_state import Group

LEVELS_MS = BrokerSettings().level_delays_ms
SECOND_MS, MINUTE_MS = 1_000, 60_000
# A group's own table (none: the default) and what it must wait after failures 1, 2, 3 and 4.
TABLES = {
    "": [10 * SECOND_MS, 30 * SECOND_MS, MINUTE_MS, 2 * MINUTE_MS],
    "6s": [6 * SECOND_MS] * 4,
    "2s 7s 1m": [2 * SECOND_MS, 7 * SECOND_MS, MINUTE_MS, MINUTE_MS],
}


class _OverHttp(ConsumeVerbs[Blocking]):
    """Our client's verbs, without a port between it and the API."""

    def __init__(self, small: SmallBroker) -> None:
        self._app, self._awaits = OpenApp(small.broker), False
        none: Any = None
        self._operations = Operations(Carrier(self._ask, none, none, none, none, lambda: False))

    async def _ask(self, call: Call[Any]) -> Any:
        with AsgiCaller(self._app) as http:
            answer = http.post(call.path, content=call.content, headers={"content-type": "application/json"})
        assert answer.status_code == 200, answer.text
        return call.read(answer.json())

    def take(self) -> Message:
        (message,) = self.receive_batch("t", "g", count=1, lease="1h")
        return message


def _receive(small: SmallBroker) -> Delivery:
    (delivery,) = small.broker.receive("t", "g", count=1, invisible_ms=3_600_000)
    return delivery


def _by_retry(small: SmallBroker) -> None:
    small.broker.retry([_receive(small).ack_token])


def _by_send_back(small: SmallBroker) -> None:
    small.broker.send_back([_receive(small).ack_token])


def _by_client_nack(small: SmallBroker) -> None:
    client = _OverHttp(small)
    client.nack(client.take())


def _by_client_nack_with_a_level(small: SmallBroker) -> None:
    client = _OverHttp(small)
    client.nack(client.take(), level=0)


def _by_worker(small: SmallBroker, **chosen: str) -> None:
    client, app = _OverHttp(small), tidemill.Worker("127.0.0.1:1", group="g")
    app.on("t", **chosen)(_fail)
    app.client.close()
    app.client = client
    with pytest.raises(ZeroDivisionError):
        app._handle(app._subscriptions[0], client.take())


def _fail(_: Message) -> None:
    raise ZeroDivisionError


def _over_grpc(small: SmallBroker, asked_ms: int, *, is_push: bool) -> None:
    """Receive one, and give it back for `asked_ms`, whatever the client made of its settings."""

    async def scene() -> None:
        with ThreadPoolExecutor(1) as executor:
            consuming, line = Consuming(small.broker, executor, Leases()), DeliveryStream()
            request = service.ReceiveMessageRequest(batch_size=1, auto_renew=is_push)
            request.message_queue.topic.name, request.group.name = "t", "g"
            request.long_polling_timeout.seconds = 0
            if not is_push:
                request.invisible_duration.seconds = 3_600
            await consuming.receive(request, line, ConsumerCall())
            change = service.ChangeInvisibleDurationRequest()
            change.topic.name, change.group.name = "t", "g"
            change.receipt_handle = line.messages[0].system_properties.receipt_handle
            change.invisible_duration.FromMilliseconds(asked_ms)
            answer = await consuming.change_invisibility(change, ConsumerCall())
            assert answer.status.code == Code.OK, answer
            consuming.polls.close()

    asyncio.run(scene())


PATHS: dict[str, Callable[[SmallBroker], None]] = {
    "broker.retry": _by_retry,
    "broker.send_back": _by_send_back,
    "client.nack": _by_client_nack,
    "client.nack, level 0": _by_client_nack_with_a_level,
    "worker": _by_worker,
    "push, asked for nothing": lambda small: _over_grpc(small, 0, is_push=True),
    "push, with the table of earlier": lambda small: _over_grpc(small, 4_000, is_push=True),
}


def _assert_pauses(small: SmallBroker, fails: Callable[[SmallBroker], None], pauses_ms: list[int]) -> None:
    small.send("t")
    for pause_ms in pauses_ms:
        fails(small)
        small.advance(pause_ms - 1)
        assert small.broker.receive("t", "g") == [], f"early, before {pause_ms} ms"
        small.advance(1)
    assert _receive(small).attempt == len(pauses_ms) + 1


@pytest.mark.parametrize("is_fifo", [False, True], ids=["plain", "fifo"])
@pytest.mark.parametrize("table", TABLES, ids=lambda table: table or "default")
@pytest.mark.parametrize("path", PATHS)
def test_the_table_of_the_group_decides_on_every_path(small, path, table, is_fifo) -> None:
    small.broker.receiver.set_group("g", backoff=table, is_fifo=is_fifo)
    _assert_pauses(small, PATHS[path], TABLES[table])


@pytest.mark.parametrize("table", TABLES, ids=lambda table: table or "default")
def test_what_a_consumer_chooses_wins(small, table) -> None:
    small.broker.receiver.set_group("g", backoff=table)
    _assert_pauses(
        small, lambda s: _by_worker(s, first_retry="3s", longest_retry="5s"), [3_000, 5_000, 5_000]
    )
    small.broker.receiver.set_group("h", backoff=table)
    (one,) = small.broker.receive("t", "h", count=1)
    (answer,) = small.broker.send_back([one.ack_token], 2)
    assert answer.deliver_at_ms == small.clock.now_ms() + 5_000


def test_a_simple_consumer_says_itself_how_long(small) -> None:
    small.broker.receiver.set_group("g", backoff="6s")
    _assert_pauses(small, lambda s: _over_grpc(s, 4_000, is_push=False), [4_000, 4_000])


@pytest.mark.parametrize("path", PATHS)
def test_the_last_attempt_that_fails_is_a_dead_letter_at_once(small, path) -> None:
    small.broker.receiver.set_group("g", backoff="6s", attempts_max=2)
    small.send("t", b"poison")
    PATHS[path](small)
    small.advance(6_000)
    PATHS[path](small)
    (letter,) = small.broker.dead_letters.waiting("g")
    assert (letter.message.body, letter.attempts) == (b"poison", 2)
    assert small.broker.receive("t", "g") == []


def test_a_retry_needs_a_valid_receipt_and_a_possible_delay(small) -> None:
    small.send("t")
    delivery = _receive(small)
    for delay_ms in (-1, 1.5, "3s", 1 << 62):
        with pytest.raises(RequestError, match="delay_ms"):
            small.broker.retry([delivery.ack_token], delay_ms)
    with pytest.raises(RequestError, match="not an ack token"):
        small.broker.retry(["nonsense"])
    with pytest.raises(RequestError, match="list of texts"):
        small.broker.retry(delivery.ack_token)
    small.broker.ack([delivery.ack_token])
    assert [sent.answer for sent in small.broker.retry([delivery.ack_token])] == [SendBackAnswer.INVALID]


@pytest.mark.parametrize("language", ["JAVA", "PYTHON", "NODE_JS"])
@pytest.mark.parametrize("table", TABLES, ids=lambda table: table or "default")
def test_push_consumers_that_pause_by_themselves_are_given_the_table(table: str, language: str) -> None:
    """FIFO push consumers. Node's client knows no table; the first two pauses and the largest are right."""
    pauses_ms = _announced_ms(Group(1, "g", is_fifo=True, backoff=table), language, 4)
    known = 2 if language == "NODE_JS" else 4
    assert pauses_ms[:known] == TABLES[table][:known]


def _announced_ms(group: Group, language: str, count: int) -> list[int]:
    """What a client of that language makes of the settings: its pauses after failures 1, 2 …"""
    asked = definition.Settings()
    asked.user_agent.language = definition.Language.Value(language)
    asked.subscription.SetInParent()
    sessions = Sessions(BrokerSettings())
    policy = sessions.settings_for(sessions.open("c"), asked, group).settings.backoff_policy
    assert policy.max_attempts == group.attempts_max
    if language == "NODE_JS":  # as its ExponentialBackoffRetryPolicy; it takes seconds for milliseconds
        backoff = policy.exponential_backoff
        first, longest, factor = backoff.initial.seconds, backoff.max.seconds, backoff.multiplier
        return [round(min(first * factor**n, longest)) for n in range(count)]
    listed = [entry.seconds * 1_000 for entry in policy.customized_backoff.next]
    return [listed[min(n, len(listed)) - 1] for n in range(1, count + 1)]


_WORDS = st.builds(lambda n, unit: f"{n}{unit}", st.integers(1, 400), st.sampled_from("smhd"))


@given(st.lists(_WORDS, max_size=40).map(" ".join), st.integers(1, 60))
def test_what_is_announced_is_what_the_broker_does(table: str, attempts: int) -> None:
    group = Group(1, "g", attempts_max=attempts, backoff=table)
    done_ms = [pause_after(group, n, LEVELS_MS).ms for n in range(1, attempts + 1)]
    assert _announced_ms(group, "JAVA", attempts) == done_ms


@pytest.mark.parametrize(
    ("levels", "pauses_ms"), [("1s 5s", [5_000, 5_000]), ("1s 5s 9s 20s", [9_000, 20_000])]
)
def test_the_default_is_the_levels_from_the_third_on(levels: str, pauses_ms: list[int]) -> None:
    levels_ms = BrokerSettings(levels=levels).level_delays_ms
    assert [pause_after(Group(1, "g"), n, levels_ms).ms for n in (1, 2)] == pauses_ms
