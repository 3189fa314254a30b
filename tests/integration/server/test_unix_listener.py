"""The Unix socket: the same answers as at the port, for requests right, wrong and cut short."""

from __future__ import annotations

import json
import socket
import threading
from contextlib import ExitStack, suppress

import pytest

from tidemill.client.transport.endpoint import read_head
from tidemill.core.addresses import unix_socket_address
from tidemill.core.errors import DiskFullError, TidemillError
from tidemill.core.limits import LOCAL_REQUEST_BYTES_MAX
from tidemill.core.model import Draft, SendResult
from tidemill.core.send_answers import decode_answers
from tidemill.core.send_batch import encode_drafts
from tidemill.server.security.authority import Authority
from tidemill.server.security.guard import Guard
from tidemill.server.security.rates import Rates
from tidemill.server.send_batch_service import SendBatchService
from tidemill.server.unix.unix_listener import UnixListener

_FILE = """
[users.shop]
token = "shop-token-1"
[[users.shop.allow]]
verbs = ["send"]
topics = ["orders"]
"""
_PATIENCE_S = 30.0


class Caller:
    """One connection, spoken by hand."""

    def __init__(self, listener: UnixListener) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.settimeout(_PATIENCE_S)
        try:
            self._socket.connect(unix_socket_address(listener.name))
        except OSError:
            self._socket.close()
            raise
        self._unread = b""

    def say(self, data: bytes) -> None:
        self._socket.sendall(data)

    def do_not_wait(self) -> None:
        self._socket.setblocking(False)

    def could_say(self, data: bytes) -> bool:
        """Whether there was space for it; a part of it does not count."""
        try:
            return self._socket.send(data) == len(data)
        except BlockingIOError:
            return False

    def peek(self) -> None:
        """Wait until something is there to be read."""
        self._socket.recv(1, socket.MSG_PEEK)

    def hang_up(self) -> None:
        self._socket.close()

    def has_ended(self) -> bool:
        try:
            return self._socket.recv(1) == b""
        except ConnectionResetError:
            return True

    def hear(self) -> tuple[int, bytes]:
        while (found := read_head(self._unread)) is None:
            self._unread += self._more()
        head, start = found
        assert head.length is not None
        while len(self._unread) < start + head.length:
            self._unread += self._more()
        content, self._unread = self._unread[start : start + head.length], self._unread[start + head.length :]
        return head.status, content

    def _more(self) -> bytes:
        data = self._socket.recv(65_536)
        assert data, "hung up"
        return data

    def send(self, drafts: list[Draft], token: str = "") -> tuple[int, bytes]:
        self.say(_request(encode_drafts(drafts), token))
        return self.hear()


def _request(content: bytes, token: str = "", *, path: str = "/v1/send-batch") -> bytes:
    bearer = f"Authorization: Bearer {token}\r\n" if token else ""
    head = f"POST {path} HTTP/1.1\r\nHost: x\r\n{bearer}Content-Length: {len(content)}\r\n\r\n"
    return head.encode() + content


def _drafts(*topics: str) -> list[Draft]:
    return [
        Draft(topic, b"body %d" % number, id=f"id-{number}", delay_ms=60_000)
        for number, topic in enumerate(topics)
    ]


@pytest.fixture
def call():
    """Makes callers, and hangs up at the end."""
    with ExitStack() as stack:

        def caller(listener: UnixListener) -> Caller:
            made = Caller(listener)
            stack.callback(made.hang_up)
            return made

        yield caller


@pytest.fixture
def listener(small):
    listener = UnixListener(SendBatchService(small.broker), Guard(), 8081, connections_max=3)
    yield listener
    listener.close(_PATIENCE_S)


def test_a_request_is_stored_and_answered(listener, small, call) -> None:
    drafts = _drafts(*["orders"] * 12)
    status, content = call(listener).send(drafts)
    answers = decode_answers(content, drafts)
    assert status == 200
    assert [answer.id for answer in answers] == [draft.id for draft in drafts]
    assert sorted(row.id for row in small.broker.views.pending()) == sorted(draft.id for draft in drafts)


def test_each_message_has_its_own_answer(listener, call) -> None:
    drafts = [*_drafts("orders"), Draft("bad name!", b"x", id="id-9")]
    status, content = call(listener).send(drafts)
    good, bad = decode_answers(content, drafts)
    assert status == 200
    assert isinstance(good, SendResult)
    assert isinstance(bad, TidemillError)


def test_requests_follow_each_other_also_in_one_piece_and_in_single_bytes(listener, small, call) -> None:
    caller = call(listener)
    first, second, third = (_request(encode_drafts([draft])) for draft in _drafts("a", "b", "c"))
    caller.say(first + second)
    assert [caller.hear()[0] for _ in range(2)] == [200, 200]
    for at in range(len(third)):
        caller.say(third[at : at + 1])
    assert caller.hear()[0] == 200
    assert len(small.broker.views.pending()) == 3


def test_what_is_no_request_gets_a_code_and_the_end(listener, call) -> None:
    wrong = {
        404: _request(b"", path="/v1/status"),
        411: b"POST /v1/send-batch HTTP/1.1\r\nHost: x\r\n\r\n",
        413: b"POST /v1/send-batch HTTP/1.1\r\nContent-Length: %d\r\n\r\n" % (LOCAL_REQUEST_BYTES_MAX + 1),
        400: b"x" * 20_000,
    }
    for status, data in wrong.items():
        caller = call(listener)
        caller.say(data)
        heard, content = caller.hear()
        assert heard == status
        assert set(json.loads(content)) == {"code", "message"}
        assert caller.has_ended()


def test_lengths_that_are_no_numbers_are_refused(listener, call) -> None:
    for length in (b"-1", b"1e3", b"9" * 5_000, "٣".encode(), b""):
        caller = call(listener)
        caller.say(b"POST /v1/send-batch HTTP/1.1\r\nContent-Length: " + length + b"\r\n\r\n")
        assert caller.hear()[0] == 411
        assert caller.has_ended()


def test_garbage_in_a_request_is_refused_and_the_connection_goes_on(listener, call) -> None:
    caller = call(listener)
    caller.say(_request(b"no batch at all"))
    status, content = caller.hear()
    assert (status, json.loads(content)["code"]) == (400, "bad-request")
    assert caller.send(_drafts("orders"))[0] == 200


def test_a_request_that_ends_in_the_middle_stores_nothing_and_harms_no_other(listener, small, call) -> None:
    caller, other = call(listener), call(listener)
    caller.say(_request(encode_drafts(_drafts("orders")))[:-3])
    caller.hang_up()
    assert other.send([Draft("orders", b"x", id="other", delay_ms=60_000)])[0] == 200
    assert [row.id for row in small.broker.views.pending()] == ["other"]


def test_a_request_that_begins_must_be_whole_in_time(listener, monkeypatch, call) -> None:
    monkeypatch.setattr("tidemill.server.unix.unix_connection.REQUEST_SECONDS", 0.05)
    caller = call(listener)
    caller.say(_request(b"0123456789")[:-1])
    assert caller.hear()[0] == 408
    assert caller.has_ended()


def test_more_callers_than_it_has_room_for_are_sent_away(listener, call) -> None:
    callers = [call(listener) for _ in range(3)]
    assert all(caller.send(_drafts("orders"))[0] == 200 for caller in callers)
    late = call(listener)
    assert late.has_ended()
    assert callers[0].send(_drafts("orders"))[0] == 200


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_fault_of_ours_ends_the_callers_it_hit_and_no_others(small, call) -> None:
    class FaultyService(SendBatchService):
        def answers(self, asked):
            if any(one.columns.topics == ["fault"] for one in asked):
                raise KeyError("a fault")
            return super().answers(asked)

    listener = UnixListener(FaultyService(small.broker), Guard(), 8081)
    other, hit = call(listener), call(listener)
    assert other.send(_drafts("orders"))[0] == 200
    hit.say(_request(encode_drafts(_drafts("fault"))))
    assert hit.has_ended()
    assert other.send(_drafts("orders"))[0] == 200
    listener.close(_PATIENCE_S)


def test_requests_that_came_together_are_stored_in_one_frame_and_answered_each(small, call) -> None:
    gathered, entered, goes_on = [], threading.Event(), threading.Event()

    class SlowService(SendBatchService):
        def answers(self, asked):
            gathered.append(len(asked))
            entered.set()
            assert goes_on.wait(_PATIENCE_S)
            return super().answers(asked)

    small.broker.topics.create("orders")
    listener = UnixListener(SlowService(small.broker), Guard(), 8081)
    callers = [call(listener) for _ in range(4)]
    goes_on.set()
    assert [caller.send(_drafts("orders"))[0] for caller in callers] == [200] * 4  # all have been let in
    goes_on.clear()
    entered.clear()
    gathered.clear()
    drafts = [
        [Draft("orders", b"x", id=f"{caller}-{number}", delay_ms=60_000) for number in range(4)]
        for caller in range(4)
    ]
    for caller, own in zip(callers, drafts, strict=True):
        caller.say(_request(encode_drafts(own)))
        assert entered.wait(_PATIENCE_S)  # the first is under way when the others come
    goes_on.set()
    for caller, own in zip(callers, drafts, strict=True):
        status, content = caller.hear()
        assert status == 200
        assert [answer.id for answer in decode_answers(content, own)] == [draft.id for draft in own]
    assert gathered == [1, 3]
    listener.close(_PATIENCE_S)


def test_a_text_that_cannot_be_stored_harms_only_its_own_request(small, monkeypatch) -> None:
    store = small.broker.send_columns

    def refuses_half(requests):
        if any("half" in request.topics for request in requests):
            raise UnicodeEncodeError("utf-8", "\ud800", 0, 1, "half a character")
        return store(requests)

    monkeypatch.setattr(small.broker, "send_columns", refuses_half)
    desk = SendBatchService(small.broker)
    sound = _drafts("orders", "orders")
    asked = [desk.read(encode_drafts(drafts)) for drafts in (sound, _drafts("half"))]
    (status, content), (_, refusal) = desk.answers(asked)
    assert status == 200
    assert [answer.id for answer in decode_answers(content, sound)] == ["id-0", "id-1"]
    assert b"not valid Unicode" in refusal


def test_who_does_not_read_holds_up_no_other(small, call) -> None:
    listener = UnixListener(SendBatchService(small.broker), Guard(), 8081)
    slow_reader, other = call(listener), call(listener)
    wrong = _request(b"no batch")
    said = 0
    slow_reader.do_not_wait()
    while slow_reader.could_say(wrong):
        said += 1
        assert said < 1_000_000
    assert other.send(_drafts("orders"))[0] == 200
    listener.close(_PATIENCE_S)


def test_who_reads_late_but_reads_is_served_on(small, call, monkeypatch) -> None:
    """Its time is over when the listener, busy with another, looks again; by then it has read."""
    monkeypatch.setattr("tidemill.server.unix.unix_connection.UNREAD_SECONDS", 0.0)
    entered, goes_on = threading.Event(), threading.Event()

    class SlowService(SendBatchService):
        def answers(self, asked):
            if asked[0].columns.topics == ["slow"]:
                entered.set()
                assert goes_on.wait(_PATIENCE_S)
            return super().answers(asked)

    listener = UnixListener(SlowService(small.broker), Guard(), 8081)
    late, slow = call(listener), call(listener)
    refused = [Draft("no good name! " * 9, b"", id=f"id-{number}") for number in range(3_000)]
    slow.say(_request(encode_drafts(_drafts("slow")))[:-1])
    late.say(_request(encode_drafts(refused)) + _request(encode_drafts(_drafts("orders"))))
    late.peek()  # the first answer has begun to come
    slow.say(b"0")
    assert entered.wait(_PATIENCE_S)
    reader = threading.Thread(target=late.hear)
    reader.start()
    goes_on.set()
    assert slow.hear()[0] == 200
    reader.join(_PATIENCE_S)
    assert late.hear()[0] == 200
    listener.close(_PATIENCE_S)


def test_errors_of_a_request_that_is_refused_in_part_reach_no_other_request(small, tmp_path) -> None:
    class FullDesk(SendBatchService):
        def store_allowed(self, columns, refusals):
            raise DiskFullError("no space")

    desk = FullDesk(small.broker)
    sound, partly = (desk.read(encode_drafts(_drafts("orders"))) for _ in range(2))
    asked = [partly._replace(refusals=[None]), sound]
    (status, _), (other, content) = desk.answers(asked)
    assert (status, other) == (507, 200)
    assert isinstance(decode_answers(content, _drafts("orders"))[0], SendResult)


def test_many_messages_of_many_requests_are_stored_in_parts(small, monkeypatch) -> None:
    monkeypatch.setattr("tidemill.server.send_batch_service.JOINED_MESSAGES_MAX", 5)
    desk, stored, store = SendBatchService(small.broker), [], small.broker.send_columns

    def watched(requests):
        stored.append([len(request) for request in requests])
        return store(requests)

    monkeypatch.setattr(small.broker, "send_columns", watched)
    requests = [
        [Draft("orders", b"", id=f"{request}-{number}") for number in range(count)]
        for request, count in enumerate([2, 3, 1, 9, 0, 4, 2])
    ]
    answers = desk.answers([desk.read(encode_drafts(drafts)) for drafts in requests])
    assert stored == [[2, 3], [1], [9], [0, 4], [2]]
    for (status, content), drafts in zip(answers, requests, strict=True):
        assert status == 200
        assert [answer.id for answer in decode_answers(content, drafts)] == [draft.id for draft in drafts]


def test_who_does_not_read_for_long_is_sent_away(small, call, monkeypatch) -> None:
    monkeypatch.setattr("tidemill.server.unix.unix_connection.UNREAD_SECONDS", 0.05)
    listener = UnixListener(SendBatchService(small.broker), Guard(), 8081)
    slow_reader = call(listener)
    with suppress(BrokenPipeError, ConnectionResetError):
        while True:  # a listener that lets it go on ends the test by the time-out of `say`
            slow_reader.say(_request(b"no batch"))
    assert call(listener).send(_drafts("orders"))[0] == 200
    listener.close(_PATIENCE_S)


def test_a_caller_is_asked_who_it_is_with_every_request(small, tmp_path, call) -> None:
    file = tmp_path / "auth.toml"
    file.write_text(_FILE)
    file.chmod(0o600)
    listener = UnixListener(SendBatchService(small.broker), Guard(Authority(file, look_every_s=0.0)), 8081)
    caller = call(listener)
    drafts = _drafts("orders", "other")
    assert caller.send(drafts)[0] == 401
    assert caller.send(drafts, "wrong")[0] == 401
    status, content = caller.send(drafts, "shop-token-1")
    allowed, refused = decode_answers(content, drafts)
    assert (status, type(allowed)) == (200, SendResult)
    assert "may not send" in str(refused)
    file.write_text(_FILE.replace("shop-token-1", "shop-token-2"))
    assert caller.send(drafts, "shop-token-1")[0] == 401
    listener.close(_PATIENCE_S)


def test_a_caller_is_not_taken_for_the_one_before_on_its_connection(small, tmp_path, call) -> None:
    file = tmp_path / "auth.toml"
    file.write_text(_FILE)
    file.chmod(0o600)
    listener = UnixListener(SendBatchService(small.broker), Guard(Authority(file)), 8081)
    content = encode_drafts(_drafts("orders"))
    length = b"Content-Length: %d\r\n" % len(content)
    first = b"POST /v1/send-batch HTTP/1.1\r\n" + length
    caller = call(listener)
    for last, status in ((b"Authorization: Bearer shop-token-1\r\n", 200), (length, 401)):
        caller.say(first + last + b"\r\n" + content)
        assert caller.hear()[0] == status
    listener.close(_PATIENCE_S)


def test_a_caller_over_its_rate_is_told_to_retry_later(small, call) -> None:
    listener = UnixListener(SendBatchService(small.broker), Guard(rates=Rates(1, now_s=lambda: 0.0)), 8081)
    caller = call(listener)
    assert [caller.send(_drafts("orders"))[0] for _ in range(3)] == [200, 200, 429]
    listener.close(_PATIENCE_S)


def test_closing_answers_what_is_under_way_and_takes_no_more(small, call) -> None:
    entered, goes_on = threading.Event(), threading.Event()

    class SlowService(SendBatchService):
        def answers(self, asked):
            entered.set()
            assert goes_on.wait(_PATIENCE_S)
            return super().answers(asked)

    listener = UnixListener(SlowService(small.broker), Guard(), 8081)
    busy, idle = call(listener), call(listener)
    busy.say(_request(encode_drafts(_drafts("orders"))))
    assert entered.wait(_PATIENCE_S)
    closing = threading.Thread(target=listener.close, args=(_PATIENCE_S,))
    closing.start()
    assert idle.has_ended()
    goes_on.set()
    assert busy.hear()[0] == 200
    assert busy.has_ended()
    closing.join(_PATIENCE_S)
    with pytest.raises(ConnectionRefusedError):
        call(listener)
