"""The bulk methods of a client, through the broker's Flight endpoint: schedule, cancel and read whole tables.

Owns the connection to that endpoint, found through `/healthz`, and dropped when another broker answers there:
then `/healthz` is read again. A connection is released and never closed: other threads may be in a call,
which would not survive that. It ends with the last of them. Every batch carries ids (made here where the
table has none), so a batch that is sent again after a lost answer is stored once. Needs pyarrow, which is
imported with the first table; a broker without the endpoint, or a machine without pyarrow, is served by HTTP
instead. So is a process that was forked after Flight was used: Flight's threads do not exist in it, and every
call there would block for ever.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from tidemill.client.tables.scheduled import Parts, RowByRow, Scheduled, StoredPart, scheduled
from tidemill.client.tables.table_ids import until_empty_id, with_ids
from tidemill.client.transport.close_signal import Closing
from tidemill.client.transport.endpoint import Endpoint
from tidemill.client.transport.forking import keep_for_ever
from tidemill.client.transport.retrying import Patience, RetryPolicy
from tidemill.core import errors
from tidemill.core.addresses import BROKER_HEADER
from tidemill.core.errors import TidemillError, UnreachableError, error_of
from tidemill.core.limits import FRAME_ROWS_MAX, MIB
from tidemill.core.model import CancelAnswer, Handle
from tidemill.core.request_ids import id_of_part

_BATCH_BYTES = 12 * MIB
_AHEAD = 3  # batches that may be unanswered: the broker shuts out who has sent too much at once
_PATIENCE_S = 600.0

_used_in: set[int] = set()  # processes, this one and those it was forked from, in which Flight was used


def as_arrow(table: Any) -> Any | None:
    """An Arrow table of what was given, None if it is no table or there is no pyarrow."""
    try:
        import pyarrow as pa
    except ImportError:
        return None
    if isinstance(table, pa.RecordBatch):
        return pa.Table.from_batches([table])
    if isinstance(table, pa.Table):
        return table
    if not hasattr(table, "itertuples"):
        return None
    try:
        return pa.Table.from_pandas(table, preserve_index=False).replace_schema_metadata(None)
    except pa.ArrowException:  # a column of mixed values, or of such as Arrow has not: row by row can read it
        return None


class FlightLink:
    """A connection to a broker's Flight endpoint. Thread-safe."""

    def __init__(
        self,
        endpoint: Endpoint,
        token: str,
        policy: RetryPolicy,
        health: Callable[[], dict[str, Any]],
        closing: Closing,
    ) -> None:
        self._endpoint = endpoint
        self._token = token
        self._policy = policy
        self._health = health
        self._closing = closing
        self._lock = threading.Lock()  # protects _client and _broker
        self._client: Any = None
        self._broker = ""  # the broker of the connection; empty where it did not say

    def is_offered(self) -> bool:
        """Whether the broker has the endpoint and this machine can use it."""
        try:
            import pyarrow.flight as _  # noqa: F401 - only whether it is there
        except ImportError:
            return False
        if _is_barred():
            return False
        with self._lock:
            return self._connection() is not None

    def close(self) -> None:
        """Release the connection. Without the lock: its holder may wait for this thread."""
        self._client = None

    def _leave(self, client: Any) -> None:
        """Let go of a connection that does not work, unless another has taken its place."""
        if self._client is client:
            self._client = None

    def leave_to_parent(self) -> None:
        """In a forked process: do not touch the connection, whose end would wait for the parent's threads."""
        if self._client is not None:
            keep_for_ever(self._client)

    # -- verbs ------------------------------------------------------------------------------------

    def schedule(self, table: Any, topic: str | None, row_by_row: RowByRow) -> Scheduled:
        """Store a table, batch by batch; what is not stored goes `row_by_row`."""
        batches = list(framed(with_ids(table)))

        def put(parts: Parts) -> None:
            def put_rest(client: Any) -> None:
                rest = until_empty_id(batches[len(parts) :])
                _put(client, rest, topic, self._options(), parts)

            self._retried(put_rest)

        return scheduled(batches, put, row_by_row)

    def read(self, request: dict[str, Any]) -> Any:
        """A table of the broker as an Arrow table."""
        from pyarrow import flight

        ticket = flight.Ticket(_json(request))
        return self._retried(lambda client: client.do_get(ticket, self._options()).read_all())

    def put_whole(self, table: Any, topic: str | None) -> StoredPart:
        """Store a table as one frame; raises what is wrong with it, and then nothing of it is stored."""
        parts: Parts = []
        batches = until_empty_id(with_ids(table).combine_chunks().to_batches())
        self._retried(lambda client: _put(client, batches, topic, self._options(), parts))
        (part,) = parts
        assert isinstance(part, StoredPart)
        return part

    def schema(self, request: dict[str, Any]) -> Any:
        """The columns that would come."""
        import pyarrow as pa

        def ask(client: Any) -> Any:
            descriptor, options = _descriptor(request), self._options()
            try:
                return client.get_schema(descriptor, options).schema
            except pa.ArrowException:
                # From there Flight carries none of the broker's text; the same request by another call does.
                client.get_flight_info(descriptor, options)
                raise

        return self._retried(ask)

    def parts(self, request: dict[str, Any]) -> list[bytes]:
        """Tickets that together cover the request, for several readers."""
        info = self._retried(lambda client: client.get_flight_info(_descriptor(request), self._options()))
        return [endpoint.ticket.ticket for endpoint in info.endpoints]

    def stream(self, ticket: bytes) -> Iterator[Any]:
        """The batches of a ticket as they come. Lost in the middle, it raises: what came has been used."""
        import pyarrow as pa
        from pyarrow import flight

        def begin(client: Any) -> tuple[Any, Any]:
            reader = client.do_get(flight.Ticket(ticket), self._options())
            return reader, _next_batch(reader)

        reader, batch = self._retried(begin)
        while batch is not None:
            yield batch
            try:
                batch = _next_batch(reader)
            except pa.ArrowException as error:
                raise _fault(error) from None

    def cancel(self, handles: Sequence[Handle], request_id: str) -> list[CancelAnswer]:
        """Cancel many; returns the definite outcome of each."""
        import pyarrow as pa

        rows = pa.table(
            {
                # A handle of another broker is unknown there, also if the topic and the id are not.
                "broker": pa.array([handle.broker for handle in handles], pa.string()),
                "topic": pa.array([handle.topic for handle in handles], pa.string()),
                "id": pa.array([handle.id for handle in handles], pa.string()),
                "seq": pa.array([handle.seq for handle in handles], pa.int64()),
            }
        )
        answers = self.cancel_rows(rows, request_id)
        return [CancelAnswer(text) for part in answers for text in part.to_pylist()]

    def cancel_rows(self, rows: Any, request_id: str) -> list[Any]:
        """Cancel the rows of a table with topic, id and seq; their answers as columns, in order."""
        answers: list[Any] = []

        def cancel(client: Any) -> None:
            _cancel(client, rows, self._options(), request_id, answers)

        self._retried(cancel, has_request_id=True)
        return answers

    def _retried(self, act: Callable[[Any], Any], *, has_request_id: bool = False) -> Any:
        """Do it with a connection, again while that can help."""
        import pyarrow as pa

        patience = Patience(self._policy, has_request_id=has_request_id)
        while True:
            with self._lock:
                had_endpoint = bool(self._broker)
                client = self._connection()  # retried as long as that can help: what it raises is final
            fault: TidemillError
            try:
                if client is None:
                    raise self._no_endpoint()
                return act(client)
            except (pa.ArrowException, OSError) as error:  # some calls raise the one, some the other
                fault = _fault(error)
                if isinstance(fault, UnreachableError):
                    self._leave(client)
            except TidemillError as error:
                fault = error
            # A broker that had the endpoint has it again soon.
            is_for_now = isinstance(fault, errors.BusyError | errors.BrokerClosedError | UnreachableError)
            wait_s = patience.wait_s() if is_for_now and (client or had_endpoint) else None
            if wait_s is None or self._closing.wait(wait_s):
                try:
                    raise fault
                finally:
                    del fault  # which would hold itself, by this frame

    def _connection(self) -> Any:
        """The connection, made if need be; None without an endpoint. Call under the lock."""
        if self._client is None:
            if _is_barred():
                raise errors.RequestError(
                    "Flight does not work in a process that was forked after its first use; use the client "
                    "for tables after the fork only, or start processes by 'spawn'"
                )
            said = self._offer()
            if not said or bool(said.get("tls")) is not self._endpoint.is_tls:
                return None
            from pyarrow import flight

            host = f"[{self._endpoint.host}]" if ":" in self._endpoint.host else self._endpoint.host
            options: dict[str, Any] = {}
            if self._endpoint.is_tls:
                options["disable_server_verification"] = not self._endpoint.is_verified
                if self._endpoint.ca:
                    options["tls_root_certs"] = Path(self._endpoint.ca).read_bytes()
            scheme = "grpc+tls" if self._endpoint.is_tls else "grpc"
            _used_in.add(os.getpid())
            client = flight.connect(f"{scheme}://{host}:{said['port']}", **options)
            self._broker = str(said.get("broker", ""))
            if self._closing.is_set():
                return client  # for the call under way alone
            self._client = client
        return self._client

    def _offer(self) -> dict[str, Any]:
        """The broker's Flight address; empty where it has none."""
        said = self._health().get("flight")
        return said if isinstance(said, dict) else {}

    def _no_endpoint(self) -> TidemillError:
        if not self._offer():
            return UnreachableError(f"no Flight endpoint at {self._endpoint}; see --flight-port")
        other = "its plain port" if self._endpoint.is_tls else "https:// and the port of --tls-port"
        return errors.RequestError(f"the Flight endpoint of {self._endpoint} is for {other}; use that")

    def _options(self) -> Any:
        from pyarrow import flight

        # Flight reconnects by itself, to any process that listens there by then.
        headers = [(BROKER_HEADER.encode(), self._broker.encode())] if self._broker else []
        if self._token:
            headers.append((b"authorization", f"Bearer {self._token}".encode()))
        return flight.FlightCallOptions(timeout=_PATIENCE_S, headers=headers)


def _is_barred() -> bool:
    """Whether this process was forked from one in which Flight was used."""
    return bool(_used_in - {os.getpid()})


def _json(request: dict[str, Any]) -> bytes:
    return json.dumps({name: value for name, value in request.items() if value is not None}).encode()


def _descriptor(request: dict[str, Any]) -> Any:
    from pyarrow import flight

    return flight.FlightDescriptor.for_command(_json(request))


def _next_batch(reader: Any) -> Any:
    """The next batch of a stream; None at its end."""
    try:
        return reader.read_chunk().data
    except StopIteration:
        return None


def _put(client: Any, batches: Sequence[Any], topic: str | None, options: Any, parts: Parts) -> None:
    """Put batches; each that is stored adds its answer to `parts`."""
    import pyarrow as pa
    from pyarrow import flight

    if not batches:  # the connection was lost after the last answer
        return
    said = {} if topic is None else {"topic": topic}
    descriptor = flight.FlightDescriptor.for_command(json.dumps(said).encode())
    writer, answers = client.do_put(descriptor, batches[0].schema, options)
    room, is_over = threading.Semaphore(_AHEAD), threading.Event()

    def feed() -> None:
        try:
            for batch in batches:
                room.acquire()
                if is_over.is_set():
                    return
                writer.write_batch(batch)
            writer.done_writing()
        except pa.ArrowException:
            return  # closing the stream raises the reason

    # Written and read at once: a broker that waits until an answer is read would not read on.
    feeding = threading.Thread(target=feed, daemon=True)
    feeding.start()
    try:
        for batch in batches:
            content = answers.read()
            if content is None:
                break
            room.release()
            table = pa.ipc.open_stream(content).read_all()
            topics = topic if topic is not None else batch.column("topic")
            parts.append(StoredPart(table.schema.metadata[b"broker"].decode(), topics, table))
    finally:
        is_over.set()
        room.release()
        feeding.join()
        writer.close()


def _cancel(client: Any, rows: Any, options: Any, request_id: str, answers: list[Any]) -> None:
    """Cancel rows, each batch a request of its own; those that have their answers are left out."""
    from pyarrow import flight

    descriptor = flight.FlightDescriptor.for_command(b'{"do": "cancel"}')
    writer, reader = client.do_exchange(descriptor, options)
    writer.begin(rows.schema)
    try:
        for batch in rows.to_batches(max_chunksize=FRAME_ROWS_MAX)[len(answers) :]:
            writer.write_with_metadata(batch, id_of_part(request_id, len(answers)).encode())
            answers.append(reader.read_chunk().data.column(0))
        writer.done_writing()
    finally:
        writer.close()


def framed(table: Any) -> Iterator[Any]:
    """Batches of a table that are stored whole, each with the columns' memory in one piece."""
    rows_max = FRAME_ROWS_MAX
    if table.nbytes > _BATCH_BYTES:
        rows_max = max(1, min(rows_max, table.num_rows * _BATCH_BYTES // table.nbytes))
    for start in range(0, table.num_rows, rows_max):
        for piece in _halved(table.slice(start, rows_max)):
            yield from piece.combine_chunks().to_batches()


def _halved(table: Any) -> Iterator[Any]:
    """The table in pieces that fit into a frame: the average is too many where large rows crowd."""
    if table.num_rows < 2 or table.nbytes <= 2 * _BATCH_BYTES:
        yield table
        return
    middle = table.num_rows // 2
    halves = table.slice(0, middle), table.slice(middle)
    if sum(half.nbytes for half in halves) > 1.5 * table.nbytes:
        yield table  # what its rows share, a dictionary, does not get less by cutting
        return
    for half in halves:
        yield from _halved(half)


_UNAUTHENTICATED = ". Detail: Unauthenticated"


def _fault(error: Exception) -> TidemillError:
    """What an error of Flight means: the broker's own words if it has some, else that it is out of reach."""
    try:
        said = json.loads(getattr(error, "extra_info", b"") or b"{}")
        return error_of(str(said["code"]), str(said["message"]))
    except (ValueError, KeyError, TypeError):
        words, is_refused, _ = str(error).partition(_UNAUTHENTICATED)
        if is_refused:  # before the call began, where Flight carries nothing but words
            return errors.UnauthorizedError(words)
        return UnreachableError(f"the Flight endpoint does not answer: {str(error).splitlines()[0][:200]}")
