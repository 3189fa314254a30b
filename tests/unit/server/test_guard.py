"""Who guesses tokens and signatures is stopped at the rate of any client, and stops no other caller."""

from __future__ import annotations

import asyncio

import pytest

from tidemill.core.errors import TooManyRequestsError, UnauthorizedError
from tidemill.server.grpc.protocol import SERVICE, Code, service
from tidemill.server.security.authority import Authority
from tidemill.server.security.caller import caller, set_caller
from tidemill.server.security.guard import Guard
from tidemill.server.security.rates import Rates

_FILE = """
[users.shop]
access_key = "shop"
secret_key = "shop-secret-1"
token = "shop-token-1"
"""
_RIGHT, _WRONG = "Bearer shop-token-1", "Bearer shop-token-2"
_GUESSER, _OTHER = "192.0.2.1", "192.0.2.2"


class _Clock:
    now_s = 0.0


@pytest.fixture
def clock():
    return _Clock()


@pytest.fixture
def guard(tmp_path, clock):
    """At one call a second, with two saved up."""
    path = tmp_path / "permissions.toml"
    path.write_text(_FILE)
    path.chmod(0o600)
    yield Guard(Authority(path), Rates(1, now_s=lambda: clock.now_s))
    set_caller(None)


def _guess_twice(guard: Guard, peer: str) -> None:
    for _ in range(2):
        with pytest.raises(UnauthorizedError):
            guard.admit_http(_WRONG, peer)


def test_an_address_that_guessed_too_often_is_refused_whatever_it_shows(guard, clock) -> None:
    _guess_twice(guard, _GUESSER)
    for shown in (_WRONG, _RIGHT):
        with pytest.raises(TooManyRequestsError, match=_GUESSER):
            guard.admit_http(shown, _GUESSER)
    guard.admit_http(_RIGHT, _OTHER)
    clock.now_s = 1.0
    guard.admit_http(_RIGHT, _GUESSER)
    assert caller().name == "shop"


def test_right_tokens_spend_nothing_of_their_address(guard, clock) -> None:
    for _ in range(2):
        guard.admit_http(_RIGHT, _GUESSER)
    _guess_twice(guard, _GUESSER)


@pytest.mark.parametrize("peer", ["127.0.0.1", "::1", "::ffff:127.0.0.1", "unknown"])
def test_at_an_address_that_all_share_only_the_wrong_are_refused(guard, peer) -> None:
    _guess_twice(guard, peer)
    with pytest.raises(TooManyRequestsError):
        guard.admit_http(_WRONG, peer)
    guard.admit_http(_RIGHT, peer)


def test_who_shows_nothing_does_not_guess(guard) -> None:
    for _ in range(5):
        with pytest.raises(UnauthorizedError):
            guard.admit_http("", _GUESSER)
    guard.admit_http(_RIGHT, _GUESSER)


@pytest.mark.parametrize("method", ["QueryRoute", "Heartbeat"])
def test_wrong_signatures_are_counted_whatever_the_call(guard, method) -> None:
    async def code() -> int:
        sent: list[bytes] = []

        async def send(event) -> None:
            sent.append(event.get("body", b""))

        signature = b"MQv2-HMAC-SHA1 Credential=shop, SignedHeaders=x-mq-date-time, Signature=00"
        headers = [(b"authorization", signature), (b"x-mq-date-time", b"20270101T080000Z")]
        scope = {"path": SERVICE + method, "headers": headers, "client": (_GUESSER, 1)}
        assert not await guard.admits_grpc(scope, None, send)
        answer = getattr(service, f"{method}Response").FromString(b"".join(sent)[5:])
        return answer.status.code

    codes = [asyncio.run(code()) for _ in range(3)]
    assert codes == [Code.UNAUTHORIZED, Code.UNAUTHORIZED, Code.TOO_MANY_REQUESTS]
    with pytest.raises(TooManyRequestsError):
        guard.admit_http(_RIGHT, _GUESSER)
