"""The telemetry streams: settings for every client, and transaction checks for producers.

Owns the open streams and the settings that a client receives: limits, back-off, long poll. A client is served
with or without a stream (after a restart some open none for minutes), so nothing that a call needs is kept
here; only the check-back of transactions needs a stream, because it is sent to the producer there.

Invariant: bytes sent to clients and not yet read are counted, per client and in total. (The answer to
settings repeats what the client sent: a client that sends and never reads would fill the memory.)
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from tidemill.broker.change.transactions import OpenTransaction
from tidemill.broker.consume.retries import pauses_of
from tidemill.core.byte_budget import ByteBudget
from tidemill.core.config import BrokerSettings
from tidemill.core.limits import KIB, MIB
from tidemill.server.grpc.conversion import half_of, resource_name
from tidemill.server.grpc.framing import Stream
from tidemill.server.grpc.protocol import definition, service
from tidemill.server.grpc.status_codes import OK
from tidemill.server.security.permissions import User, Verb
from tidemill.store.consumers.consumer_state import Group

LONG_POLL_S = 20
BATCH_MAX = 32
_SEND_ATTEMPTS = 3
# A longer timer of Node's ends at once.
_NODE_PAUSE_MS_MAX = (1 << 31) - 1
# What one client has not taken, and one command however large: a question holds a whole message.
_UNREAD_BYTES_MAX = 256 * KIB
# Unread bytes of all clients. A small command is always accepted.
_UNREAD_OF_ALL_BYTES_MAX = 64 * MIB
_SMALL_BYTES = 4 * KIB
# How long a client may take to read one command.
_READ_SECONDS_MAX = 30.0


@dataclass(eq=False, slots=True)
class Session:
    """One open telemetry stream."""

    client_id: str
    user: User | None  # None: authentication is off
    namespace: str
    unread_of_all: ByteBudget
    unread: ByteBudget = field(default_factory=lambda: ByteBudget(_UNREAD_BYTES_MAX))
    is_producer: bool = False
    topics: frozenset[str] = frozenset()
    outbox: asyncio.Queue[bytes] = field(default_factory=asyncio.Queue)

    def may_send(self, topic: str) -> bool:
        return self.user is None or self.user.may(Verb.SEND, topic=topic)

    def say(self, command: Any) -> bool:
        """Queue a command; False if the client does not read, or too many others do not."""
        data = command.SerializeToString()
        if len(data) > _SMALL_BYTES and not self.unread_of_all.fits(len(data)):
            return False
        if not self.unread.take(len(data)):
            return False
        self.unread_of_all.take(len(data), is_certain=True)
        self.outbox.put_nowait(data)
        return True

    async def write_out(self, stream: Stream, patience: asyncio.Timeout) -> None:
        """Write commands to the stream until it ends; `patience` runs out where the client does not read."""
        loop = asyncio.get_running_loop()
        while not patience.expired():
            data = await self.outbox.get()
            patience.reschedule(loop.time() + _READ_SECONDS_MAX)
            await stream.write([data])
            self.outbox.task_done()
            self.forget(len(data))
            if not patience.expired():
                patience.reschedule(None)

    def forget(self, size: int) -> None:
        """So much is taken, or never will be."""
        self.unread.give_back(size)
        self.unread_of_all.give_back(size)

    def close(self) -> None:
        """Nothing more is written."""
        self.forget(self.unread.held)


class Sessions:
    """The open streams. Lives on one event loop."""

    def __init__(self, settings: BrokerSettings) -> None:
        self._settings = settings
        self._sessions: set[Session] = set()
        self._unread = ByteBudget(_UNREAD_OF_ALL_BYTES_MAX)
        self._turn = 0

    def __len__(self) -> int:
        return len(self._sessions)

    @property
    def unread_bytes(self) -> int:
        """Bytes sent to clients and not yet read."""
        return self._unread.held

    def open(self, client_id: str, user: User | None = None, namespace: str = "") -> Session:
        session = Session(client_id, user, namespace, self._unread)
        self._sessions.add(session)
        return session

    def close(self, session: Session) -> None:
        self._sessions.discard(session)
        session.close()

    # -- settings ---------------------------------------------------------------------------------

    def settings_for(self, session: Session, asked: Any, group: Group | None) -> Any:
        """The client's settings with the broker's added; some clients fail when a field is missing."""
        given = definition.Settings()
        given.CopyFrom(asked)
        given.metric.on = False
        if asked.HasField("publishing"):
            session.is_producer = True
            session.topics = frozenset(resource_name(topic) for topic in asked.publishing.topics)
            given.publishing.max_body_size = self._settings.body_bytes_max
            given.publishing.validate_message_type = True
            given.backoff_policy.max_attempts = _SEND_ATTEMPTS
            backoff = given.backoff_policy.exponential_backoff
            if given.user_agent.language == definition.Language.NODE_JS:
                # It reads the seconds alone and takes them for milliseconds: else it would not pause at all.
                backoff.initial.seconds, backoff.max.seconds = 50, 1000
            else:
                backoff.initial.nanos, backoff.max.seconds = 10_000_000, 1
            backoff.multiplier = 2
        elif group is not None:
            given.subscription.fifo = group.is_fifo
            given.subscription.receive_batch_size = BATCH_MAX
            if not asked.subscription.HasField("long_polling_timeout"):
                given.subscription.long_polling_timeout.seconds = LONG_POLL_S
            given.backoff_policy.max_attempts = group.attempts_max
            self._fill_pauses(given, group)
        return service.TelemetryCommand(status=OK, settings=given)

    def _fill_pauses(self, given: Any, group: Group) -> None:
        """The group's table, for consumers that pause by themselves: FIFO push consumers do.

        Past the end of the list clients repeat its last entry. Tables are in whole seconds, which is all that
        one official client reads.
        """
        pauses_ms = [pause.ms for pause in pauses_of(group, self._settings.level_delays_ms)]
        pauses_ms = pauses_ms[: group.attempts_max]
        if given.user_agent.language == definition.Language.NODE_JS:
            # It knows no list of pauses: given one, a FIFO consumer would try once and no more. The nearest
            # that it can follow has the first two pauses and the longest. It takes seconds for milliseconds.
            backoff = given.backoff_policy.exponential_backoff
            backoff.initial.seconds = pauses_ms[0]
            backoff.max.seconds = min(max(pauses_ms), _NODE_PAUSE_MS_MAX)
            backoff.multiplier = pauses_ms[1] / pauses_ms[0] if len(pauses_ms) > 1 else 1
            return
        for pause_ms in pauses_ms:
            given.backoff_policy.customized_backoff.next.add().seconds = pause_ms // 1000

    # -- transactions -----------------------------------------------------------------------------

    def who_can_check(self) -> Callable[[str, str | None], bool]:
        """Whether a client is connected that can answer for a (topic, owner), for many at once."""
        producers = [s for s in self._sessions if s.is_producer]
        clients = {s.client_id for s in producers}

        @cache
        def is_served(topic: str) -> bool:
            return any((not s.topics or topic in s.topics) and s.may_send(topic) for s in producers)

        return lambda topic, owner: owner in clients or is_served(topic)

    def ask_about(self, transaction: OpenTransaction, owner: str | None) -> bool:
        """Send a producer the check of its transaction; False if none is connected."""
        producers = [s for s in self._sessions if s.is_producer and s.may_send(transaction.topic)]
        # Who began it knows; else one that named the topic; else one that named none.
        able = (
            [s for s in producers if s.client_id == owner]
            or [s for s in producers if transaction.topic in s.topics]
            or [s for s in producers if not s.topics]
        )
        if not able:
            return False
        self._turn += 1
        asked = able[self._turn % len(able)]
        command = service.TelemetryCommand(status=OK)
        question = command.recover_orphaned_transaction_command
        question.message.CopyFrom(half_of(transaction.message, transaction.topic, asked.namespace))
        question.transaction_id = transaction.message.id
        return asked.say(command)
