"""The endpoint for bulk traffic: an Arrow Flight server that schedules, cancels and reads in batches.

    DoPut        schedule: each batch is one frame, stored whole or not at all; its answer (ids, seqs, times
                 as an Arrow stream in the put's metadata) is sent after its sync
    DoExchange   cancel: for every batch of handles a batch of definite answers; the metadata of a batch is
                 its request id
    DoAction     cancel: the same for one Arrow stream
    DoGet        pending, history or the messages of a topic, as a stream

Owns the calls' life: how many may write at once, and that none begins a batch once the endpoint closes. The
server calls from threads of its own; the broker is thread-safe. Errors keep their code in `extra_info`.

Invariant: no value of a batch is read, and no permission checked, before `check_whole` has accepted it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any, TypeVar

import pyarrow as pa
from pyarrow import flight

from tidemill.broker.broker import Broker
from tidemill.broker.change.canceller import ANSWERS
from tidemill.broker.query.table_schemas import Wanted
from tidemill.broker.send.admit_table import check_columns, texts
from tidemill.broker.send.answers import TableResult
from tidemill.broker.send.batch_bounds import check_whole
from tidemill.core.clock import stopwatch_s
from tidemill.core.errors import (
    BodyTooLargeError,
    BrokerClosedError,
    RequestError,
    TidemillError,
)
from tidemill.core.limits import FRAME_ROWS_MAX
from tidemill.core.request_ids import REQUEST_ID_NAME, request_key
from tidemill.server.flight.flight_auth import (
    MIDDLEWARE,
    BearerFactory,
    authorization_of,
    refusal_of,
)
from tidemill.server.flight.flight_requests import (
    cancel_columns,
    command_of,
    parse_ticket,
    parts_of,
    put_topic_of,
    request_id_of,
    ticket_content,
    wanted_of,
)
from tidemill.server.flight.flight_traffic import FlightLimits, FlightTraffic, caller_of
from tidemill.server.security.authority import Authority
from tidemill.server.security.caller import (
    CANCEL,
    LOOK,
    SEND,
    may,
    may_everywhere,
    require,
    require_on,
    set_caller,
)
from tidemill.server.security.permissions import User

T = TypeVar("T")
_STOP_SECONDS = 5.0
_LAST_READ_SECONDS = 0.5  # for the last answers to be read
_PUTS_MAX = 4
_CANCEL = "cancel"
ANSWER = pa.schema([("answer", pa.string())])
RECEIPT = pa.schema(
    [("id", pa.string()), ("seq", pa.int64()), ("deliver_at_ms", pa.int64()), ("is_repeat", pa.bool_())]
)


class FlightServer(flight.FlightServerBase):  # type: ignore[misc]  # pyarrow has no types
    """Listens from the moment it is made; `close` ends it."""

    def __init__(
        self,
        broker: Broker,
        host: str = "127.0.0.1",
        port: int = 0,
        *,
        authority: Authority | None = None,
        tls: tuple[bytes, bytes] | None = None,
        limits: FlightLimits | None = None,
    ) -> None:
        self.limits = limits or FlightLimits()
        self._authority = authority
        scheme = "grpc+tls" if tls else "grpc"
        address = f"[{host}]" if ":" in host else host
        super().__init__(
            f"{scheme}://{address}:{port}",
            tls_certificates=[tls] if tls else None,
            middleware={MIDDLEWARE: BearerFactory(self.limits, authority, broker.id)},
        )
        self._broker = broker
        self.traffic = FlightTraffic()
        self._writes = threading.BoundedSemaphore(_PUTS_MAX)  # bounds the batches in memory at once
        self._is_closing = False

    def close(self) -> None:
        """Take no more batches; return when the calls under way have ended, or soon after."""
        self._is_closing = True
        ending = threading.Thread(target=self.shutdown, daemon=True)
        ending.start()
        until_s = stopwatch_s() + _STOP_SECONDS
        ending.join(_LAST_READ_SECONDS)
        # A client that holds an idle stream open must not delay the stop.
        while ending.is_alive() and self.traffic.waits(now_s := stopwatch_s(), 0).working and now_s < until_s:
            ending.join(_LAST_READ_SECONDS)

    # -- writing ----------------------------------------------------------------------------------

    def do_put(self, context: Any, descriptor: Any, reader: Any, writer: Any) -> None:
        """Schedule every batch of the stream; answers each with its result."""
        topic = _translated(put_topic_of, descriptor)
        caller = caller_of(context.peer())
        with self.traffic.stream(caller):
            for number, (batch, _) in enumerate(self._batches(reader, caller)):
                with self.traffic.handing(caller, batch.get_total_buffer_size()):
                    result = _translated(self._put, context, batch, topic, number)
                content = _result_content(result, number)
                with self.traffic.waiting(caller):  # who never reads its answers is waited for, too
                    writer.write(content)

    def _batches(self, reader: Any, caller: str) -> Iterator[tuple[pa.RecordBatch, Any]]:
        """The batches of a call's stream as they come, each with its metadata (None: it has none)."""
        while True:
            try:
                with self.traffic.waiting(caller):
                    chunk = _translated(_next_in, reader)
            except StopIteration:
                return
            if chunk.data is not None:
                yield chunk.data, chunk.app_metadata

    def _put(self, context: Any, batch: pa.RecordBatch, topic: str | None, number: int) -> TableResult:
        try:
            self._count(context)
            with self._writes:
                self._require_send(batch, topic)
                return self._broker.send_table(batch, topic=topic, is_whole=True)
        except TidemillError as error:
            error.args = (f"batch {number} was not stored: {error}",)
            raise

    def do_exchange(self, context: Any, descriptor: Any, reader: Any, writer: Any) -> None:
        """Cancel every batch of the stream; answers each with a batch."""
        said = _translated(command_of, descriptor)
        verb, topic = said.get("do", said.get("table")), said.get("topic")
        if verb != _CANCEL or not (topic is None or isinstance(topic, str)):
            raise refusal_of(RequestError('an exchange is a cancel: {"do": "cancel", "topic": "orders"}'))
        caller = caller_of(context.peer())
        with self.traffic.stream(caller):
            writer.begin(ANSWER)
            for batch, metadata in self._batches(reader, caller):
                with self.traffic.handing(caller, batch.get_total_buffer_size()):
                    answer = _translated(self._cancel, context, batch, topic, request_id_of(metadata))
                with self.traffic.waiting(caller):
                    writer.write_batch(answer)

    def do_action(self, context: Any, action: Any) -> Iterator[pa.Buffer]:
        """`cancel`: an Arrow stream of handles in, an Arrow stream of answers out."""
        self._handed(context, action.body.size)
        if action.type != _CANCEL:
            raise refusal_of(RequestError(f"unknown action {action.type!r}; the only one is {_CANCEL}"))
        sink = pa.BufferOutputStream()
        with self.traffic.call(caller_of(context.peer())), pa.ipc.new_stream(sink, ANSWER) as out:
            for number, batch in enumerate(_translated(_stream_in, action.body)):
                request_id = request_id_of((batch.schema.metadata or {}).get(REQUEST_ID_NAME))
                out.write_batch(_translated(self._cancel, context, batch, None, request_id, number))
        return iter([sink.getvalue()])

    def list_actions(self, context: Any) -> list[tuple[str, str]]:
        return [(_CANCEL, "Cancel messages: an Arrow stream of handles, or of topic, id and seq.")]

    def _cancel(
        self, context: Any, batch: pa.RecordBatch, topic: str | None, request_id: str | None, part: int = 0
    ) -> pa.RecordBatch:
        name = self._count(context)
        key = None if request_id is None else request_key(request_id, name, part)
        with self._writes:
            self._require_open()
            check_whole(batch)
            topics, ids, seqs = cancel_columns(batch, self._broker.id, topic)
            for name in topics.unique().to_pylist():
                if name:
                    require(CANCEL, topic=name)
            codes = self._broker.cancel_rows(topics, ids, seqs, request_id=key)
        return pa.RecordBatch.from_arrays([_answer_texts().take(pa.array(codes))], schema=ANSWER)

    def _handed(self, context: Any, size: int) -> None:
        """A request that is one message has come."""
        self.traffic.handed(caller_of(context.peer()), size)

    def _count(self, context: Any) -> str:
        """A call or a batch of it counts; returns the name of its user."""
        user = self._identify(context)
        name = "" if user is None else user.name
        self.limits.spend(name, context)
        return name

    def _identify(self, context: Any) -> User | None:
        """The user of a call, who is the caller from now on, for one batch: a token may be revoked."""
        user = None
        if self._authority is not None:
            user = self._authority.user_of_token(authorization_of(context))
        set_caller(user)
        return user

    def _require_send(self, batch: pa.RecordBatch, topic: str | None) -> None:
        self._require_open()
        check_whole(batch)
        check_columns(batch.schema.names, topic)
        # As the broker reads them: a column of bytes must not be checked under another name.
        names = [topic] if topic is not None else texts(batch, "topic").unique().to_pylist()
        for name in names:
            require(SEND, topic=name)

    def _require_open(self) -> None:
        if self._is_closing:
            raise BrokerClosedError("the broker is stopping; retry later")

    # -- reading ----------------------------------------------------------------------------------

    def do_get(self, context: Any, ticket: Any) -> Any:
        """A table as a stream."""
        self._handed(context, len(ticket.ticket))
        wanted = _translated(parse_ticket, ticket.ticket)
        batches = _translated(self._read, context, wanted)
        return flight.GeneratorStream(wanted.schema(), self._stream_out(batches, caller_of(context.peer())))

    def _read(self, context: Any, wanted: Wanted) -> Iterator[pa.RecordBatch]:
        self._count(context)
        require_on(LOOK, wanted.only_topic)
        self._broker.require_open()
        return self._broker.tables.read(wanted)

    def _stream_out(self, batches: Iterator[pa.RecordBatch], caller: str) -> Iterator[pa.RecordBatch]:
        with self.traffic.call(caller):
            while (batch := _translated(self._next_out, batches)) is not None:
                with self.traffic.out(caller, batch.nbytes):  # asked for the next one, it has been taken
                    yield batch
                del batch  # the next one is made without this one in memory

    def _next_out(self, batches: Iterator[pa.RecordBatch]) -> pa.RecordBatch | None:
        self._require_open()
        with self.traffic.making():
            return next(batches, None)

    def list_flights(self, context: Any, criteria: bytes) -> Iterator[Any]:
        """The tables: pending, history, and the messages of every topic the caller may look at."""
        self._handed(context, len(criteria))
        _translated(self._identify, context)
        topics = [view.name for view in self._broker.views.topics() if may(LOOK, topic=view.name)]
        tables = ("pending", "history") if may_everywhere(LOOK) else ()
        found = [*map(Wanted, tables), *(Wanted("messages", name) for name in topics)]
        return iter([_info([wanted], _path(wanted)) for wanted in found])

    def get_flight_info(self, context: Any, descriptor: Any) -> Any:
        """The table's schema and a ticket for each of its parts, which may be read side by side."""
        self._handed(context, _size_of(descriptor))
        said = _translated(command_of, descriptor)
        count = _translated(parts_of, said)
        wanted = _translated(wanted_of, said)
        return _info(_translated(self._parts, context, wanted, count), descriptor)

    def _parts(self, context: Any, wanted: Wanted, count: int) -> list[Wanted]:
        self._count(context)
        require_on(LOOK, wanted.only_topic)
        self._broker.require_open()
        return self._broker.tables.parts(wanted, count) if count > 1 else [wanted]

    def get_schema(self, context: Any, descriptor: Any) -> Any:
        self._handed(context, _size_of(descriptor))
        return flight.SchemaResult(_translated(lambda: wanted_of(command_of(descriptor)).schema()))


def _path(wanted: Wanted) -> Any:
    names = [wanted.table] if wanted.topic is None else [wanted.table, wanted.topic]
    return flight.FlightDescriptor.for_path(*names)


def _size_of(descriptor: Any) -> int:
    return len(descriptor.command or b"") + sum(map(len, descriptor.path or ()))


def _info(parts: list[Wanted], descriptor: Any) -> Any:
    endpoints = [flight.FlightEndpoint(flight.Ticket(ticket_content(part)), []) for part in parts]
    return flight.FlightInfo(parts[0].schema(), descriptor, endpoints, -1, -1)


def _next_in(reader: Any) -> Any:
    try:
        return reader.read_chunk()
    except OSError as error:  # what Arrow raises about a message that it cannot take apart
        raise RequestError(f"the stream cannot be read: {error}") from None


def _stream_in(body: Any) -> list[pa.RecordBatch]:
    try:
        batches = list(pa.ipc.open_stream(body))
    except (pa.ArrowException, OSError) as error:
        raise RequestError(f"the action's body is not an Arrow stream: {error}") from None
    # Its answers leave all at once, and rows of nulls need no bytes in the request.
    if (rows := sum(batch.num_rows for batch in batches)) > FRAME_ROWS_MAX:
        raise BodyTooLargeError(
            f"an action has {rows} rows; it takes {FRAME_ROWS_MAX} in all, an exchange as many in each batch"
        )
    return batches


def _result_content(result: TableResult, number: int) -> pa.Buffer:
    """The answer to a batch: an Arrow stream with its rows' ids, seqs and times, and notes if any."""
    facts = {"broker": result.broker, "batch": str(number)}
    columns = [
        result.ids,
        pa.array(result.seqs),
        pa.array(result.deliver_at_ms),
        pa.array(result.is_repeat),
    ]
    schema = RECEIPT.with_metadata(facts)
    if result.notes is not None:
        columns.append(result.notes)
        schema = schema.append(pa.field("note", pa.string()))
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, schema) as out:
        out.write_batch(pa.RecordBatch.from_arrays(columns, schema=schema))
    return sink.getvalue()


def _translated(act: Callable[..., T], *arguments: Any) -> T:
    """Do it; an error raised on purpose becomes one that Flight can carry."""
    try:
        return act(*arguments)
    except TidemillError as error:
        raise refusal_of(error) from None
    except flight.FlightError:
        raise
    except (pa.ArrowException, UnicodeError, SystemError) as error:
        raise refusal_of(RequestError(f"the batch cannot be read: {error}")) from None


@cache
def _answer_texts() -> pa.Array:
    return pa.array([ANSWERS[state].value for state in sorted(ANSWERS)])
