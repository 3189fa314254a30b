"""Every operation as a value: the request to make, and how to read the answer. No sockets, no waiting.

`Client` and `AsyncClient` only differ in how they transport a `Call`, so each operation is written once,
here.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar
from urllib.parse import quote, urlencode

from tidemill.client.answers import (
    Backup,
    BrokerStatus,
    GroupInfo,
    Holds,
    Message,
    Minute,
    Moved,
    Pending,
    TopicInfo,
)
from tidemill.core.arguments import require_kind
from tidemill.core.errors import IllegalHandleError, RequestError
from tidemill.core.holds import Held, held_named
from tidemill.core.model import CancelAnswer, Handle, TopicType

T = TypeVar("T")
HandleLike = Handle | str


@dataclass(frozen=True, slots=True)
class Call(Generic[T]):
    """One request: its content, how long the broker itself may take, how to read the answer.

    It is repeatable if a retry after a lost answer does no harm, and the second answer is correct as well.
    With a request id it is for as long as the broker keeps that.
    """

    method: str
    path: str
    content: bytes
    read: Callable[[Any], T]
    patience_s: float = 0.0
    is_repeatable: bool = True
    request_id: str = ""


def post(
    path: str,
    body: Mapping[str, Any],
    read: Callable[[Any], T],
    *,
    patience_s: float = 0.0,
    is_repeatable: bool = True,
    request_id: str = "",
) -> Call[T]:
    given = {name: value for name, value in body.items() if value is not None}
    return Call("POST", path, json.dumps(given).encode(), read, patience_s, is_repeatable, request_id)


def get(path: str, query: Mapping[str, Any], read: Callable[[Any], T]) -> Call[T]:
    given = {name: value for name, value in query.items() if value is not None}
    return Call("GET", f"{path}?{urlencode(given)}" if given else path, b"", read)


# -- consuming ------------------------------------------------------------------------------------


def receive(
    topic: str,
    group: str,
    count: int,
    wait_ms: int,
    invisible_ms: int,
    tags: Sequence[str] | None,
    one_per_message_group: bool = False,
) -> Call[list[Message]]:
    body = {
        "topic": topic,
        "group": group,
        "count": count,
        "wait_ms": wait_ms,
        "invisible_ms": invisible_ms,
        "tags": _texts("tags", tags) if tags is not None else None,
        "one_per_message_group": one_per_message_group or None,
    }
    return post(
        "/v1/receive",
        body,
        lambda said: [_message(fields) for fields in said["deliveries"]],
        patience_s=wait_ms / 1000,
    )


def _texts(name: str, values: Sequence[str]) -> list[str]:
    """Several texts; a lone one would be taken for its letters."""
    if isinstance(values, str):
        raise RequestError(f"{name} must be a list of texts; write {name}=[{values!r}]")
    return list(values)


def _message(fields: dict[str, Any]) -> Message:
    text, encoded = fields.pop("body"), fields.pop("body_base64")
    body = text.encode() if text is not None else base64.b64decode(encoded or "")
    message_id, keys = fields.pop("message_id"), tuple(fields.pop("keys"))
    return Message(id=message_id, body=body, keys=keys, **known(Message, fields))


def ack(ack_tokens: Sequence[str]) -> Call[list[bool]]:
    # Repeated, it finds the ack tokens spent that it has settled; the meaning of False says so.
    return post("/v1/ack", {"ack_tokens": list(ack_tokens)}, lambda said: list(said["settled"]))


def change_invisibility(ack_tokens: Sequence[str], invisible_ms: int) -> Call[list[bool]]:
    body = {"ack_tokens": list(ack_tokens), "invisible_ms": invisible_ms}
    return post("/v1/invisibility", body, lambda said: list(said["settled"]))


def give_back(ack_tokens: Sequence[str]) -> Call[list[bool]]:
    body = {"ack_tokens": list(ack_tokens), "invisible_ms": 0, "untried": True}
    return post("/v1/invisibility", body, lambda said: list(said["settled"]))


# -- cancel and reschedule ------------------------------------------------------------------------


def cancel(handles: Sequence[HandleLike], request_id: str) -> Call[list[CancelAnswer]]:
    body = {"handles": _handle_texts(handles)}
    return post(
        "/v1/cancel",
        body,
        lambda said: [CancelAnswer(answer) for answer in said["answers"]],
        request_id=request_id,
    )


def _handle_texts(handles: Sequence[HandleLike]) -> list[str]:
    for handle in handles:
        if not isinstance(handle, Handle | str):
            raise IllegalHandleError(f"{handle!r} is no handle; a message that is not timed has none")
    return [str(handle) for handle in handles]


def cancel_where(
    topic: str, key: str | None, from_ms: int | None, to_ms: int | None, request_id: str
) -> Call[int]:
    _check_choice(key, from_ms, to_ms)
    body = {"topic": topic, "key": key, "from_ms": from_ms, "to_ms": to_ms}
    return post("/v1/cancel", body, lambda said: int(said["cancelled"]), request_id=request_id)


@dataclass(frozen=True, slots=True)
class NewDueTime:
    """Where a reschedule moves to: exactly one is given."""

    deliver_at_ms: int | None = None
    delay_ms: int | None = None
    by_ms: int | None = None

    def fields(self) -> dict[str, int]:
        given = {
            "deliver_at_ms": self.deliver_at_ms,
            "delay_ms": self.delay_ms,
            "by_ms": self.by_ms,
        }
        chosen = {name: value for name, value in given.items() if value is not None}
        if len(chosen) != 1:
            raise RequestError("pass exactly one of at, delay, by")
        return chosen


def reschedule(handles: Sequence[HandleLike], whither: NewDueTime, request_id: str) -> Call[list[Moved]]:
    body = {"handles": _handle_texts(handles), **whither.fields()}
    return post(
        "/v1/reschedule",
        body,
        lambda said: [_moved(fields) for fields in said["answers"]],
        request_id=request_id,
    )


def reschedule_where(
    topic: str, key: str | None, from_ms: int | None, to_ms: int | None, whither: NewDueTime, request_id: str
) -> Call[int]:
    _check_choice(key, from_ms, to_ms)
    body = {"topic": topic, "key": key, "from_ms": from_ms, "to_ms": to_ms, **whither.fields()}
    return post("/v1/reschedule", body, lambda said: int(said["moved"]), request_id=request_id)


def _moved(fields: Mapping[str, Any]) -> Moved:
    if fields["answer"] == "moved":
        return Moved(fields["handle"], fields["deliver_at_ms"])
    return Moved(None, None, CancelAnswer(fields["answer"]))


def _check_choice(key: str | None, from_ms: int | None, to_ms: int | None) -> None:
    has_range = from_ms is not None and to_ms is not None
    if (key is not None) == has_range or (from_ms is None) != (to_ms is None):
        raise RequestError("pass a handle, a key, or both ends of a range")


# -- looking --------------------------------------------------------------------------------------


def pending(
    topic: str | None, key: str | None, from_ms: int | None, to_ms: int | None, limit: int
) -> Call[list[Pending]]:
    query = {"topic": topic, "key": key, "from_ms": from_ms, "to_ms": to_ms, "limit": limit}
    return get("/v1/pending", query, lambda said: [_pending(fields) for fields in said["pending"]])


def _pending(fields: dict[str, Any]) -> Pending:
    message_id, keys = fields.pop("message_id"), tuple(fields.pop("keys"))
    return Pending(id=message_id, keys=keys, **known(Pending, fields))


def forecast(topic: str | None, horizon_ms: int) -> Call[list[Minute]]:
    query = {"topic": topic, "horizon_ms": horizon_ms}
    return get("/v1/forecast", query, lambda said: [Minute(m["from_ms"], m["due"]) for m in said["minutes"]])


def status() -> Call[BrokerStatus]:
    return get("/v1/status", {}, _status)


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


def health() -> Call[dict[str, Any]]:
    return get("/healthz", {}, lambda said: dict(said))


def find(topic: str, key: str) -> Call[list[dict[str, Any]]]:
    return get(f"/v1/topics/{_in_path(topic)}/find", {"key": key}, lambda said: list(said["messages"]))


# -- topics and groups ----------------------------------------------------------------------------


def topics() -> Call[list[TopicInfo]]:
    return get("/v1/topics", {}, lambda said: [_topic(fields) for fields in said["topics"]])


def create_topic(name: str, topic_type: TopicType | str, queues: int | None) -> Call[TopicInfo]:
    return post("/v1/topics", {"name": name, "type": str(TopicType(topic_type)), "queues": queues}, _topic)


def delete_topic(name: str, force: bool) -> Call[int]:
    path = f"/v1/topics/{_in_path(name)}?force={'true' if force else 'false'}"
    # Repeated, it would not find the topic that it has deleted.
    return Call("DELETE", path, b"", lambda said: int(said["cancelled"]), is_repeatable=False)


def pause_topic(name: str) -> Call[TopicInfo]:
    return post(f"/v1/topics/{_in_path(name)}/pause", {}, _topic)


def resume_topic(name: str) -> Call[TopicInfo]:
    return post(f"/v1/topics/{_in_path(name)}/resume", {}, _topic)


def limit_topic(name: str, per_second: int) -> Call[TopicInfo]:
    return post(f"/v1/topics/{_in_path(name)}/limit", {"per_second": per_second}, _topic)


def _topic(fields: dict[str, Any]) -> TopicInfo:
    return TopicInfo(type=TopicType(fields.pop("type")), **known(TopicInfo, fields))


def groups() -> Call[list[GroupInfo]]:
    return get("/v1/groups", {}, lambda said: [_group(fields) for fields in said["groups"]])


def set_group(
    name: str,
    max_attempts: int | None,
    is_fifo: bool | None,
    start: str | None,
    backoff: str | None = None,
) -> Call[GroupInfo]:
    given = {"max_attempts": max_attempts, "is_fifo": is_fifo, "start": start, "backoff": backoff}
    body = json.dumps({name: value for name, value in given.items() if value is not None}).encode()
    return Call("PUT", f"/v1/groups/{_in_path(name)}", body, _group)


def reset_group(name: str, topic: str, to_ms: int) -> Call[None]:
    return post(f"/v1/groups/{_in_path(name)}/reset", {"topic": topic, "to_ms": to_ms}, lambda said: None)


def _group(fields: dict[str, Any]) -> GroupInfo:
    return GroupInfo(**known(GroupInfo, fields))


# -- levers ---------------------------------------------------------------------------------------


def hold(what: Held | str) -> Call[Holds]:
    return post(f"/v1/holds/{held_named(what)}/hold", {}, _holds)


def resume(what: Held | str) -> Call[Holds]:
    return post(f"/v1/holds/{held_named(what)}/resume", {}, _holds)


def _holds(fields: dict[str, Any]) -> Holds:
    return Holds(**known(Holds, fields))


def advance(by_ms: int | None, to_ms: int | None) -> Call[int]:
    return post(
        "/v1/clock/advance",
        {"by_ms": by_ms, "to_ms": to_ms},
        lambda said: int(said["now_ms"]),
        patience_s=3600.0,
        is_repeatable=False,
    )


def backup(directory: str) -> Call[Backup]:
    return post(
        "/v1/backup",
        {"directory": directory},
        lambda said: Backup(**known(Backup, said)),
        patience_s=3600.0,
        is_repeatable=False,
    )


def backup_progress() -> Call[tuple[int, int]]:
    return get("/v1/backup", {}, lambda said: (int(said["done_bytes"]), int(said["total_bytes"])))


def _in_path(name: str) -> str:
    require_kind("a name", name, str, "a text")
    if not name:
        raise RequestError("the name is empty; name the topic, or the group")
    return quote(name, safe="")


def known(kind: Any, fields: Mapping[str, Any]) -> dict[str, Any]:
    """The fields this client knows; a newer broker may send more."""
    return {name: value for name, value in fields.items() if name in kind.__dataclass_fields__}
