"""What can be asked of a broker, each operation once: the request to make, and how to read the answer.

Owns the translation between the values of this package and JSON. How a request travels is the client's: it
gives `ask`, which blocks or waits. An embedded broker answers the same operations without requests
(`tidemill.embedded`). Times are Unix milliseconds and names are as in the HTTP API.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from tidemill.client.calls import Call, get, in_path, known, post
from tidemill.client.send.drafts import drafts_of_table
from tidemill.client.tables.flight_link import FlightLink
from tidemill.client.tables.scheduled import Scheduled
from tidemill.client.tables.whole import scheduled_by_flight
from tidemill.core.answers import (
    Backup,
    BrokerStatus,
    DamagedMessage,
    DeadLetter,
    FoundMessage,
    GroupInfo,
    Holds,
    Message,
    Minute,
    Moved,
    NackResult,
    PendingMessage,
    TopicInfo,
)
from tidemill.core.holds import Held
from tidemill.core.model import CancelAnswer, Draft, Handle, TopicType
from tidemill.core.request_ids import id_of_part
from tidemill.core.send_answers import Answer
from tidemill.core.splitting import split

T = TypeVar("T")
_FEW_HANDLES = 256  # are cancelled over HTTP,
_HANDLES_IN_A_REQUEST = 4096  # so many at once, and all of them where there is no Flight


class Ask(Protocol):
    def __call__(self, call: Call[T]) -> Awaitable[T]: ...


class InThread(Protocol):
    def __call__(self, act: Callable[..., T], *args: Any) -> Awaitable[T]: ...


@dataclass(frozen=True, slots=True)
class Carrier:
    """How a client's requests travel. In a blocking client nothing here suspends."""

    ask: Ask  # the answer to a request
    in_thread: InThread  # the result of a function that blocks
    send_many: Callable[[Iterable[Draft]], Awaitable[list[Answer]]]
    send_rows: Callable[[Iterable[Draft]], list[Answer]]  # the same, for functions that are `in_thread`
    flight: Callable[[], FlightLink]
    is_closed: Callable[[], bool]


class Operations:
    """The operations of a broker, asked by HTTP."""

    def __init__(self, carrier: Carrier) -> None:
        self._ask, self.in_thread, self.send_many = carrier.ask, carrier.in_thread, carrier.send_many
        self._carrier = carrier

    @property
    def is_closed(self) -> bool:
        return self._carrier.is_closed()

    @property
    def flight(self) -> FlightLink:
        return self._carrier.flight()

    async def schedule(self, table: Any, topic: str | None, jitter_ms: int) -> Scheduled:
        by_flight = scheduled_by_flight, self.flight, table, topic, jitter_ms
        scheduled = await self.in_thread(*by_flight, self._carrier.send_rows)
        if scheduled is None:
            return Scheduled([await self.send_many(drafts_of_table(table, topic, jitter_ms))])
        return scheduled

    # -- consuming --------------------------------------------------------------------------------

    def receive(
        self,
        topic: str,
        group: str,
        count: int,
        wait_ms: int,
        lease_ms: int,
        tags: Sequence[str] | None,
        one_per_message_group: bool = False,
    ) -> Awaitable[list[Message]]:
        body = {
            "topic": topic,
            "group": group,
            "count": count,
            "wait_ms": wait_ms,
            "lease_ms": lease_ms,
            "tags": None if tags is None else list(tags),
            "one_per_message_group": one_per_message_group or None,
        }
        return self._ask(post("/v1/receive", body, _list(Message, "deliveries"), patience_s=wait_ms / 1000))

    def ack(self, ack_tokens: Sequence[str]) -> Awaitable[list[bool]]:
        # Repeated, it finds the tokens spent that it has settled; the meaning of False says so.
        return self._ask(post("/v1/ack", {"ack_tokens": ack_tokens}, _settled))

    def extend(self, ack_tokens: Sequence[str], lease_ms: int) -> Awaitable[list[bool]]:
        return self._ask(post("/v1/extend", {"ack_tokens": ack_tokens, "lease_ms": lease_ms}, _settled))

    def requeue(self, ack_tokens: Sequence[str]) -> Awaitable[list[bool]]:
        return self._ask(post("/v1/requeue", {"ack_tokens": ack_tokens}, _settled))

    def nack(
        self, ack_tokens: Sequence[str], delay_ms: int | None, level: int | None
    ) -> Awaitable[list[NackResult]]:
        body = {"ack_tokens": ack_tokens, "delay_ms": delay_ms, "level": level}
        # Repeated, it delays them again, and what was dead by the first is answered with `invalid`. With a
        # level it would find the tokens spent of what it has answered: better not to retry.
        return self._ask(post("/v1/nack", body, _list(NackResult, "answers"), is_repeatable=level is None))

    def dead_letter(self, ack_tokens: Sequence[str]) -> Awaitable[list[bool]]:
        body = {"ack_tokens": ack_tokens}
        return self._ask(post("/v1/dead-letters", body, _settled, is_repeatable=False))

    # -- cancel and reschedule --------------------------------------------------------------------

    def cancel(self, handles: Sequence[Handle], request_id: str) -> Awaitable[list[CancelAnswer]]:
        body = {"handles": list(map(str, handles))}
        return self._ask(post("/v1/cancel", body, _cancelled, request_id=request_id))

    async def cancel_many(self, handles: Sequence[Handle], request_id: str) -> list[CancelAnswer]:
        if len(handles) > _FEW_HANDLES and await self.in_thread(self.flight.is_offered):
            return await self.in_thread(self.flight.cancel, handles, request_id)
        answers: list[CancelAnswer] = []
        for number, part in enumerate(split(handles, _HANDLES_IN_A_REQUEST)):
            answered = await self.cancel(part, id_of_part(request_id, number))
            answers += answered
        return answers

    def cancel_where(self, topic: str, where: Mapping[str, Any], request_id: str) -> Awaitable[int]:
        body = {"topic": topic, **where}
        return self._ask(post("/v1/cancel", body, _number("cancelled"), request_id=request_id))

    def reschedule(
        self, handles: Sequence[Handle], to: Mapping[str, int], request_id: str
    ) -> Awaitable[list[Moved]]:
        body = {"handles": list(map(str, handles)), **to}
        return self._ask(post("/v1/reschedule", body, _moved, request_id=request_id))

    def reschedule_where(
        self, topic: str, where: Mapping[str, Any], to: Mapping[str, int], request_id: str
    ) -> Awaitable[int]:
        body = {"topic": topic, **where, **to}
        return self._ask(post("/v1/reschedule", body, _number("moved"), request_id=request_id))

    # -- looking ----------------------------------------------------------------------------------

    def pending(
        self, topic: str | None, key: str | None, from_ms: int | None, to_ms: int | None, limit: int
    ) -> Awaitable[list[PendingMessage]]:
        query = {"topic": topic, "key": key, "from_ms": from_ms, "to_ms": to_ms, "limit": limit}
        return self._ask(get("/v1/pending", query, _pending))

    def find(self, topic: str, key: str) -> Awaitable[list[FoundMessage]]:
        return self._ask(
            get(
                f"/v1/topics/{in_path(topic)}/find",
                {"key": key},
                _list(FoundMessage, "messages", topic=topic),
            )
        )

    def forecast(self, topic: str | None, horizon_ms: int) -> Awaitable[list[Minute]]:
        query = {"topic": topic, "horizon_ms": horizon_ms}
        return self._ask(
            get("/v1/forecast", query, lambda said: [Minute(m["from_ms"], m["due"]) for m in said["minutes"]])
        )

    def status(self) -> Awaitable[BrokerStatus]:
        return self._ask(get("/v1/status", {}, _status))

    def damaged(self, limit: int) -> Awaitable[list[DamagedMessage]]:
        return self._ask(get("/v1/damaged", {"limit": limit}, _list(DamagedMessage, "damaged")))

    # -- topics, groups, dead letters -------------------------------------------------------------

    def topics(self) -> Awaitable[list[TopicInfo]]:
        return self._ask(get("/v1/topics", {}, _list(TopicInfo, "topics")))

    def create_topic(self, name: str, topic_type: TopicType, queues: int | None) -> Awaitable[TopicInfo]:
        body = {"name": name, "type": str(topic_type), "queues": queues}
        return self._ask(post("/v1/topics", body, _one(TopicInfo)))

    def delete_topic(self, name: str, force: bool) -> Awaitable[int]:
        path = f"/v1/topics/{in_path(name)}?force={'true' if force else 'false'}"
        # Repeated, it would not find the topic that it has deleted.
        return self._ask(Call("DELETE", path, b"", _number("cancelled"), is_repeatable=False))

    def pause_topic(self, name: str) -> Awaitable[TopicInfo]:
        return self._ask(post(f"/v1/topics/{in_path(name)}/pause", {}, _one(TopicInfo)))

    def resume_topic(self, name: str) -> Awaitable[TopicInfo]:
        return self._ask(post(f"/v1/topics/{in_path(name)}/resume", {}, _one(TopicInfo)))

    def limit_topic(self, name: str, per_second: int) -> Awaitable[TopicInfo]:
        return self._ask(
            post(f"/v1/topics/{in_path(name)}/limit", {"per_second": per_second}, _one(TopicInfo))
        )

    def groups(self) -> Awaitable[list[GroupInfo]]:
        return self._ask(get("/v1/groups", {}, _list(GroupInfo, "groups")))

    def set_group(self, name: str, settings: Mapping[str, Any]) -> Awaitable[GroupInfo]:
        return self._ask(
            Call("PUT", f"/v1/groups/{in_path(name)}", json.dumps(dict(settings)).encode(), _one(GroupInfo))
        )

    def reset_group(self, name: str, topic: str, to_ms: int) -> Awaitable[None]:
        body = {"topic": topic, "to_ms": to_ms}
        return self._ask(post(f"/v1/groups/{in_path(name)}/reset", body, lambda said: None))

    def dead_letters(self, group: str | None, limit: int) -> Awaitable[list[DeadLetter]]:
        return self._ask(
            get("/v1/dead-letters", {"group": group, "limit": limit}, _list(DeadLetter, "dead_letters"))
        )

    def resend_dead_letters(self, group: str, ids: Sequence[str] | None) -> Awaitable[int]:
        body = {"group": group, "ids": None if ids is None else list(ids), "all": ids is None}
        # Repeated, it would find none of those that it has resent.
        return self._ask(post("/v1/dead-letters/resend", body, _number("resent"), is_repeatable=False))

    # -- the broker as a whole --------------------------------------------------------------------

    def hold(self, what: Held) -> Awaitable[Holds]:
        return self._ask(post(f"/v1/holds/{what}/hold", {}, _one(Holds)))

    def resume(self, what: Held) -> Awaitable[Holds]:
        return self._ask(post(f"/v1/holds/{what}/resume", {}, _one(Holds)))

    def advance(self, by_ms: int | None, to_ms: int | None) -> Awaitable[int]:
        body = {"by_ms": by_ms, "to_ms": to_ms}
        read = _number("now_ms")
        return self._ask(post("/v1/clock/advance", body, read, patience_s=3600.0, is_repeatable=False))

    def backup(self, directory: str) -> Awaitable[Backup]:
        call = post(
            "/v1/backup", {"directory": directory}, _one(Backup), patience_s=3600.0, is_repeatable=False
        )
        return self._ask(call)

    def backup_progress(self) -> Awaitable[tuple[int, int]]:
        return self._ask(
            get("/v1/backup", {}, lambda said: (int(said["done_bytes"]), int(said["total_bytes"])))
        )


# -- how answers are read -------------------------------------------------------------------------


def health() -> Call[dict[str, Any]]:
    return get("/healthz", {}, lambda said: dict(said))


def _settled(said: Any) -> list[bool]:
    return list(said["settled"])


def _body(fields: Mapping[str, Any]) -> bytes:
    text, encoded = fields["body"], fields["body_base64"]
    return text.encode() if text is not None else base64.b64decode(encoded or "")


def _handle(text: str | None) -> Handle | None:
    return None if text is None else Handle.parse(text)


_FROM_JSON: dict[str, Callable[[Any], Any]] = {"keys": tuple, "handle": _handle, "type": TopicType}


def _read(kind: Callable[..., T], fields: Mapping[str, Any], **more: Any) -> T:
    """An answer, or a part of one, from its fields in JSON; there the id of a message has a longer name."""
    given = {"id": fields.get("message_id"), **fields, **more}
    for name, read in _FROM_JSON.items():
        if name in fields and name not in more:
            given[name] = read(fields[name])
    if "body_base64" in fields:
        given["body"] = _body(fields)
    return kind(**known(kind, given))


def _one(kind: Callable[..., T]) -> Callable[[Any], T]:
    """Reads an answer that is one value."""
    return lambda said: _read(kind, said)


def _list(kind: Callable[..., T], name: str, **more: Any) -> Callable[[Any], list[T]]:
    """Reads an answer that has a list of values."""
    return lambda said: [_read(kind, fields, **more) for fields in said[name]]


def _number(name: str) -> Callable[[Any], int]:
    return lambda said: int(said[name])


def _pending(said: Any) -> list[PendingMessage]:
    handles = (Handle.parse(fields["handle"]) for fields in said["pending"])
    return [
        _read(PendingMessage, fields, handle=handle, seq=handle.seq)
        for fields, handle in zip(said["pending"], handles, strict=True)
    ]


def _cancelled(said: Any) -> list[CancelAnswer]:
    return list(map(CancelAnswer, said["answers"]))


def _moved(said: Any) -> list[Moved]:
    return [
        Moved(_handle(fields["handle"]), fields["deliver_at_ms"])
        if fields["answer"] == "moved"
        else Moved(None, None, CancelAnswer(fields["answer"]))
        for fields in said["answers"]
    ]


def _status(said: dict[str, Any]) -> BrokerStatus:
    late = said["lateness_ms"]
    return BrokerStatus(
        now_ms=said["now_ms"],
        pending=said["pending"],
        sent=said["sent"],
        released=said["released"],
        cancelled=said["cancelled"],
        runner=said["pipeline"]["runner"],
        lateness_p50_ms=late["p50"],
        lateness_p99_ms=late["p99"],
        lateness_max_ms=late["max"],
        fields=said,
    )
