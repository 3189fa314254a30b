"""Kept connections for asyncio: the same as `connection.py`, on an event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from tidemill.client.transport.connection import ConnectionLostError
from tidemill.client.transport.endpoint import Answer, Endpoint, MalformedAnswerError, read_chunks, read_head
from tidemill.client.transport.forking import keep_for_ever

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]

_READ_BYTES = 262_144
_KEPT_MAX = 64


class AsyncConnection:
    """One kept connection; one request at a time."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self.is_fresh = True
        self.is_kept = True

    async def exchange(self, head: bytes, content: bytes) -> Answer:
        """Send a request and read its answer. A cancelled one leaves the connection closed."""
        is_first, self.is_fresh = self.is_fresh, False
        is_whole = False
        data = bytearray()
        try:
            self._writer.write(b"%b%d\r\n\r\n%b" % (head, len(content), content))
            await self._writer.drain()
            answer = await self._read(data)
            is_whole = True
            return answer
        except (OSError, EOFError, MalformedAnswerError) as error:
            reason = str(error) or type(error).__name__
            raise ConnectionLostError(reason, is_stale=not is_first and not data) from error
        finally:
            if not is_whole:
                self.close()

    async def _read(self, data: bytearray) -> Answer:
        await self._more(data)
        while (found := read_head(data)) is None:
            await self._more(data)
        head, start = found
        self.is_kept = head.is_kept
        if head.length is None:
            while (content := read_chunks(data, start)) is None:
                await self._more(data)
            return Answer(head.status, content, head.unix_socket)
        while len(data) < start + head.length:
            await self._more(data)
        return Answer(head.status, bytes(data[start : start + head.length]), head.unix_socket)

    async def _more(self, data: bytearray) -> None:
        piece = await self._reader.read(_READ_BYTES)
        if not piece:
            raise EOFError("the broker closed the connection")
        data += piece

    def close(self) -> None:
        self.is_kept = False
        if self._writer.get_extra_info("sslcontext") is not None:
            self._writer.transport.abort()  # a polite end of TLS would outlive the event loop
        else:
            self._writer.close()


async def connect(endpoint: Endpoint) -> Streams:
    """A new connection to the broker's port."""
    return await asyncio.open_connection(endpoint.host, endpoint.port, ssl=endpoint.tls())


class AsyncPool:
    """Connections to one place, made by `connect`, for one event loop."""

    def __init__(self, connect: Callable[[], Awaitable[Streams]]) -> None:
        self._connect = connect
        self._idle: list[AsyncConnection] = []
        self._is_closed = False

    async def exchange(self, head: bytes, content: bytes, timeout_s: float, *, is_repeatable: bool) -> Answer:
        """One request on a kept connection, or a new one; always a new one for what must not happen twice."""
        was_sent = False
        try:
            async with asyncio.timeout(timeout_s):
                while True:
                    is_kept = is_repeatable and bool(self._idle)
                    connection = self._idle.pop() if is_kept else await self._open()
                    was_sent = True
                    try:
                        answer = await connection.exchange(head, content)
                    except ConnectionLostError as lost:
                        if lost.is_stale:
                            was_sent = False
                            continue
                        raise
                    self._give_back(connection)
                    return answer
        except TimeoutError as error:
            raise ConnectionLostError(
                f"no answer within {timeout_s:g} s", is_stale=False, was_sent=was_sent, was_slow=True
            ) from error

    async def _open(self) -> AsyncConnection:
        try:
            return AsyncConnection(*await self._connect())
        except OSError as error:
            raise ConnectionLostError(error.strerror or str(error), is_stale=False, was_sent=False) from error

    def _give_back(self, connection: AsyncConnection) -> None:
        if connection.is_kept and not self._is_closed and len(self._idle) < _KEPT_MAX:
            self._idle.append(connection)
        else:
            connection.close()

    def close(self) -> None:
        self._is_closed = True
        idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()

    def leave_to_parent(self) -> None:
        """In a forked process: touch the connections no more: to close one takes it off the parent's loop.

        The pool is not used any more.
        """
        keep_for_ever(self._idle)
