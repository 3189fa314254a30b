"""The fast transport for clients on this machine: a Unix socket that takes `POST /v1/send-batch` and no more.

Between a request on the port and the service that handles it lie a proxy, an event loop and a thread pool,
each of which must wake up first. Here one thread reads the requests of all connections
(`unix_connection.py`), has the complete ones stored in one call, and answers: the same bytes, the same rules,
half the latency. Its name is random, announced in answers over the port, and in no directory; a client that
cannot connect uses the port.

One thread, because several would only wait for each other: for the interpreter and for the log's writer.
Requests that arrive while it stores are complete when it is back, and share the next frame and its sync.

Invariants: every request is authenticated as at the port; what is gathered is bounded by the connections
times the size of a request; one client that is slow, silent or does not read delays no other.
"""

from __future__ import annotations

import logging
import secrets
import select
import socket
import threading
from contextlib import suppress

from tidemill.core.addresses import unix_socket_address
from tidemill.core.clock import stopwatch_s
from tidemill.core.errors import TidemillError
from tidemill.server.http.http_errors import error_bytes, status_of
from tidemill.server.security.guard import Guard
from tidemill.server.send_batch_service import Asked, SendBatchService
from tidemill.server.unix.unix_connection import Refused, Request, UnixConnection

logger = logging.getLogger(__name__)

_CONNECTIONS_MAX = 64
_LOOK_EVERY_S = 0.5  # at who is over
_PEER = "127.0.0.1"  # clients of this socket could as well use the port


class UnixListener:
    """Listens until it is closed."""

    def __init__(
        self, service: SendBatchService, guard: Guard, port: int, *, connections_max: int = _CONNECTIONS_MAX
    ) -> None:
        self._service = service
        self._guard = guard
        self._connections_max = connections_max
        self._closing = threading.Event()
        self._callers: dict[int, UnixConnection] = {}  # by descriptor; changed by the loop's thread alone
        self._waiting: list[UnixConnection] = []  # a complete request may be here already
        # With the port: who has come to another one has come through a proxy, and shall not go round it.
        self.name = f"tidemill-{port}-{secrets.token_hex(16)}"
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(unix_socket_address(self.name))
        self._listener.listen(connections_max)
        self._listener.setblocking(False)
        self._epoll = select.epoll()
        self._epoll.register(self._listener, select.EPOLLIN)
        self._now_s = stopwatch_s()  # when the loop last woke up
        self._look_at_s = self._now_s + _LOOK_EVERY_S
        self._begin()

    def _begin(self) -> None:
        self._thread = threading.Thread(target=self._turn, name="unix-socket", daemon=True)
        self._thread.start()

    def close(self, patience_s: float) -> None:
        """Take no more requests; return when those under way are answered, or patience is at its end."""
        self._closing.set()
        with suppress(OSError):  # it may be closed already
            self._listener.shutdown(socket.SHUT_RDWR)  # which wakes the loop
        for caller in list(self._callers.values()):
            if not caller.is_served:
                caller.hang_up()
        self._thread.join(patience_s)

    # -- the loop ---------------------------------------------------------------------------------

    def _turn(self) -> None:
        try:
            while not self._closing.is_set():
                requests = self._whole_requests()
                if requests:
                    self._serve(requests)
        finally:
            if self._closing.is_set():
                self._let_go()
            else:  # an internal error: reported like all, and another thread continues
                self._begin()

    def _let_go(self) -> None:
        self._epoll.close()
        self._listener.close()
        for caller in self._callers.values():
            caller.close()

    def _whole_requests(self) -> list[tuple[UnixConnection, Request]]:
        """Wait for something to do; returns the requests that are whole, at most one of each caller."""
        waiting, self._waiting = self._waiting, []
        events = self._epoll.poll(0 if waiting else _LOOK_EVERY_S)
        self._now_s = stopwatch_s()
        found: list[tuple[UnixConnection, Request]] = []
        for caller in waiting:
            self._look_at(caller, found, is_readable=False)
        for number, _ in events:
            known = self._callers.get(number)
            if known is None:
                self._accept(number)
            elif known not in waiting:  # it has had its look
                self._look_at(known, found, is_readable=True)
        if self._now_s >= self._look_at_s:  # now that everything received was handled
            self._end_those_over()
        return found

    def _accept(self, number: int) -> None:
        if number != self._listener.fileno():
            return  # a caller that is over
        try:
            accepted, _ = self._listener.accept()
        except OSError as error:
            if not self._closing.is_set() and not isinstance(error, BlockingIOError):
                logger.warning("the Unix socket takes no connections: %s", error.strerror)
                # Too many open files, perhaps: that passes. Those who are in are served meanwhile.
                self._epoll.modify(self._listener, 0)
            return
        if len(self._callers) >= self._connections_max:
            accepted.close()
            return
        caller = UnixConnection(accepted, self._now_s)
        self._epoll.register(accepted, select.EPOLLIN)
        self._callers[accepted.fileno()] = caller

    def _look_at(
        self, caller: UnixConnection, found: list[tuple[UnixConnection, Request]], *, is_readable: bool
    ) -> None:
        """Do what a caller waits for, and find its next request."""
        if caller.unread_bytes:  # nothing more is taken from who does not read
            if not caller.send_more():
                self._end(caller)
            elif caller.unread_bytes == 0:
                caller.has_been_read(self._now_s)
                self._epoll.modify(caller.socket, select.EPOLLIN)
                self._keep(caller, is_there=True)
            return
        if is_readable and not caller.take(self._now_s):
            self._end(caller)
            return
        try:
            request = caller.next_request(self._now_s)
        except Refused as refused:
            self._keep(caller, is_there=caller.refuse(refused, self._now_s))
            return
        if request is not None:
            found.append((caller, request))

    def _serve(self, requests: list[tuple[UnixConnection, Request]]) -> None:
        """Have the requests stored in one go, and answer each."""
        for caller, _ in requests:
            caller.is_served = True
        answers = None
        try:
            answers = self._answers([request for _, request in requests])
        finally:
            if answers is None:  # those hit by an internal error use the port, the others stay
                for caller, _ in requests:
                    self._end(caller)
        for (caller, _), (status, content) in zip(requests, answers, strict=True):
            caller.is_served = False
            self._keep(caller, is_there=caller.answer(status, content, self._now_s))

    def _answers(self, requests: list[Request]) -> list[tuple[int, bytes]]:
        answers: list[tuple[int, bytes]] = []
        asked: list[Asked] = []
        at: list[int] = []
        for index, request in enumerate(requests):
            answers.append((200, b""))
            try:
                self._guard.admit_http(request.authorization, _PEER)
                asked.append(self._service.read(request.content))
                at.append(index)
            except TidemillError as error:
                answers[index] = status_of(error), error_bytes(error)
        for index, answer in zip(at, self._service.answers(asked), strict=True):
            answers[index] = answer
        return answers

    # -- callers ----------------------------------------------------------------------------------

    def _keep(self, caller: UnixConnection, *, is_there: bool) -> None:
        """Go on with a caller that was answered."""
        if caller.unread_bytes and is_there:
            self._epoll.modify(caller.socket, select.EPOLLOUT)
        elif caller.is_leaving or not is_there or self._closing.is_set():
            self._end(caller)
        elif caller.has_more:
            self._waiting.append(caller)

    def _end(self, caller: UnixConnection) -> None:
        self._callers.pop(caller.socket.fileno(), None)
        self._waiting = [other for other in self._waiting if other is not caller]
        caller.close()  # which also removes it from epoll

    def _end_those_over(self) -> None:
        self._look_at_s = self._now_s + _LOOK_EVERY_S
        self._epoll.modify(self._listener, select.EPOLLIN)
        for caller in [caller for caller in self._callers.values() if caller.is_over(self._now_s)]:
            timeout_answer = caller.timeout_answer()
            if timeout_answer is None:
                self._end(caller)
            else:
                self._keep(caller, is_there=caller.refuse(timeout_answer, self._now_s))
