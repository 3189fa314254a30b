"""The permissions file, tokens and signatures: who is let in, who is refused, and what no answer shows."""

from __future__ import annotations

import hmac
import logging
import os

import pytest

from tidemill.core.durations import format_time
from tidemill.core.errors import ForbiddenError, RequestError, TooManyRequestsError, UnauthorizedError
from tidemill.server.security.authority import Authority
from tidemill.server.security.permissions import Verb, parse_permissions
from tidemill.server.security.rates import Rates
from tidemill.testing.clock import ManualClock

_NOW_MS = 1_800_000_000_000
_HOUR_MS = 3_600_000
_SECRETS = ("very-secret-key", "very-secret-token")
_FILE = """
[users.shop]
access_key = "shop-ak"
secret_key = "very-secret-key"
token = "very-secret-token"

[[users.shop.allow]]
verbs = ["send", "look"]
topics = ["orders-*"]

[[users.shop.allow]]
verbs = ["receive"]
topics = ["orders-eu"]
groups = ["billing"]
"""


@pytest.fixture
def path(tmp_path, monkeypatch):
    # The import linter, which another test runs in this process, switches loggers off.
    monkeypatch.setattr(logging.getLogger("tidemill.server.security.authority"), "disabled", False)
    path = tmp_path / "permissions.toml"
    path.write_text(_FILE)
    path.chmod(0o600)
    return path


@pytest.fixture
def authority(path):
    return Authority(path, clock=ManualClock(_NOW_MS), look_every_s=0)


def _stamp(ms: int = _NOW_MS) -> str:
    return format_time(ms)[:19].replace("-", "").replace(":", "") + "Z"


def _signed(date_time: str, *, key: str = "shop-ak", secret: str = "very-secret-key") -> str:
    digest = hmac.digest(secret.encode(), date_time.encode(), "sha1").hex()
    return f"MQv2-HMAC-SHA1 Credential={key}, SignedHeaders=x-mq-date-time, Signature={digest}"


class TestSignatures:
    @pytest.mark.parametrize(
        "change",
        [
            lambda header: header,
            lambda header: header.replace("shop-ak", "shop-ak//Rocketmq"),
            lambda header: header[:-40] + header[-40:].upper(),
        ],
        ids=["Python", "Go", "Java"],
    )
    def test_the_forms_of_the_official_clients_are_known(self, authority, change):
        assert authority.user_of_signature(change(_signed(_stamp())), _stamp()).name == "shop"

    @pytest.mark.parametrize("hours", [-12, -9.5, 0, 5.75, 8, 14])
    def test_local_time_that_calls_itself_utc_is_fresh(self, authority, hours):
        stamp = _stamp(_NOW_MS + round(hours * _HOUR_MS))
        assert authority.user_of_signature(_signed(stamp), stamp).name == "shop"

    def test_a_time_with_its_offset_is_taken_as_it_stands(self, authority):
        stamp = format_time(_NOW_MS + 8 * _HOUR_MS).replace("Z", "+08:00")
        assert authority.user_of_signature(_signed(stamp), stamp).name == "shop"
        stale = format_time(_NOW_MS).replace("Z", "+08:00")
        with pytest.raises(UnauthorizedError, match="expired"):
            authority.user_of_signature(_signed(stale), stale)

    @pytest.mark.parametrize("off_ms", [-20 * 60_000, 20 * 60_000, -48 * _HOUR_MS, 365 * 24 * _HOUR_MS])
    def test_an_expired_time_is_refused(self, authority, off_ms):
        stamp = _stamp(_NOW_MS + off_ms)
        with pytest.raises(UnauthorizedError, match="expired"):
            authority.user_of_signature(_signed(stamp), stamp)

    def test_named_time_zones_narrow_the_window(self, path):
        path.write_text(_FILE + '[signatures]\nskew = "1m"\ntime_zones = ["Asia/Shanghai"]\n')
        authority = Authority(path, clock=ManualClock(_NOW_MS))
        good, bad = _stamp(_NOW_MS + 8 * _HOUR_MS), _stamp(_NOW_MS + 7 * _HOUR_MS)
        assert authority.user_of_signature(_signed(good), good).name == "shop"
        with pytest.raises(UnauthorizedError, match="60 s"):
            authority.user_of_signature(_signed(bad), bad)

    @pytest.mark.parametrize(
        ("header", "text"),
        [
            ("", "access key"),
            ("MQv2-HMAC-SHA1 Credential=, SignedHeaders=x-mq-date-time, Signature=00", "access key"),
            ("Basic abc", "MQv2-HMAC-SHA1"),
            ("MQv2-HMAC-SHA1 Credential=shop-ak, Signature=xyz", "hexadecimal"),
            ("MQv2-HMAC-SHA1 Credential=shop-ak", "wrong"),
            (_signed(_stamp(), secret="another"), "wrong"),
            (_signed(_stamp(), key="somebody"), "wrong"),
            (_signed(_stamp(), key="nobody", secret="no user has this key"), "wrong"),
        ],
    )
    def test_wrong_signatures_are_refused(self, authority, header, text):
        with pytest.raises(UnauthorizedError, match=text):
            authority.user_of_signature(header, _stamp())

    @pytest.mark.parametrize("stamp", ["", "yesterday", "now", "+5m", "1800000000000", "99999999T999999Z"])
    def test_what_is_no_time_is_refused(self, authority, stamp):
        with pytest.raises(UnauthorizedError, match="not a time"):
            authority.user_of_signature(_signed(stamp), stamp)


class TestTokens:
    def test_a_token_names_its_user(self, authority):
        assert authority.user_of_token("Bearer very-secret-token").name == "shop"
        assert authority.user_of_token("bearer  very-secret-token ").name == "shop"

    @pytest.mark.parametrize(
        "header", ["", "Bearer", "Bearer  ", "Basic very-secret-token", "Bearer x\udc80"]
    )
    def test_others_are_refused(self, authority, header):
        with pytest.raises(UnauthorizedError):
            authority.user_of_token(header)


class TestRules:
    def test_verbs_topics_and_groups_count_together(self, authority):
        user = authority.user_of_token("Bearer very-secret-token")
        user.require(Verb.SEND, topic="orders-eu")
        user.require(Verb.RECEIVE, topic="orders-eu", group="billing")
        for verb, topic, group in (
            (Verb.SEND, "orders", None),
            (Verb.SEND, "ORDERS-eu", None),
            (Verb.CANCEL, "orders-eu", None),
            (Verb.RECEIVE, "orders-us", "billing"),
            (Verb.RECEIVE, "orders-eu", "audit"),
            (Verb.ADMIN, "orders-eu", None),
        ):
            with pytest.raises(ForbiddenError, match=f"may not {verb}"):
                user.require(verb, topic=topic, group=group)
        with pytest.raises(ForbiddenError, match="all topics"):
            user.require_everywhere(Verb.LOOK)
        with pytest.raises(ForbiddenError):
            user.require_any("bills")

    def test_a_line_break_does_not_slip_past_a_pattern(self, authority):
        user = authority.user_of_token("Bearer very-secret-token")
        assert not user.may(Verb.RECEIVE, topic="orders-eu\n", group="billing")

    @pytest.mark.parametrize(
        ("text", "reason"),
        [
            ("", "no user"),
            ("users = 3", "must be a table"),
            ("[users.a]\n", "access_key"),
            ('[users.a]\naccess_key = "a"\n', "secret_key"),
            ('[users.a]\ntoken = "short"\n', "8 characters"),
            ('[users.a]\ntoken = "very-secret-token"\nrole = "x"\n', "unknown"),
            ('[users.a]\ntoken = "very-secret-token"\n[[users.a.allow]]\nverbs = ["fly"]\n', "known are"),
            ('[users.a]\ntoken = "very-secret-token"\n[[users.a.allow]]\ntopics = "x"\n', "list"),
            (
                '[users.a]\ntoken = "very-secret-token"\n[users.b]\ntoken = "very-secret-token"\n',
                "same token",
            ),
            ('[users.a]\ntoken = "very-secret-token\n', "not TOML"),
            ('[users.a]\ntoken = ["very-secret-token"]\n', "quotes"),
            (_FILE + '[signatures]\ntime_zones = ["Mars/Base"]\n', "time zone"),
            (_FILE + '[signatures]\nskew = "soon"\n', "duration"),
        ],
    )
    def test_a_wrong_file_says_what_is_wrong_and_no_secret(self, text, reason):
        with pytest.raises(RequestError, match=reason) as caught:
            parse_permissions(text)
        assert not any(secret in str(caught.value) for secret in _SECRETS)
        assert "\n" not in str(caught.value)


class TestReloading:
    def test_a_change_counts_at_once(self, authority, path):
        assert not authority.user_of_token("Bearer very-secret-token").may(Verb.ADMIN, topic="orders-eu")
        path.write_text(_FILE.replace('"look"', '"admin"'))
        assert authority.user_of_token("Bearer very-secret-token").may(Verb.ADMIN, topic="orders-eu")
        path.write_text(_FILE.replace("very-secret-token", "another-secret-token"))
        with pytest.raises(UnauthorizedError):
            authority.user_of_token("Bearer very-secret-token")

    @pytest.mark.parametrize("content", [b'[users.a]\ntoken = "very-secret-token', b"\xff\xfe", None])
    def test_a_broken_file_changes_nothing_and_is_reported_once(self, authority, path, content, caplog):
        if content is None:
            path.unlink()
        else:
            path.write_bytes(content)
        with caplog.at_level(logging.WARNING):
            for _ in range(3):
                assert authority.user_of_token("Bearer very-secret-token").name == "shop"
        assert len(caplog.records) == 1
        assert "stay as they were" in caplog.text
        assert not any(secret in caplog.text for secret in _SECRETS)
        path.write_text(_FILE.replace("users.shop", "users.store"))
        assert authority.user_of_token("Bearer very-secret-token").name == "store"

    def test_with_a_wrong_file_at_a_restart_every_caller_is_refused_until_it_is_right(self, path, caplog):
        path.write_text("no toml")
        with pytest.raises(RequestError, match="cannot use the permissions file"):
            Authority(path)
        authority = Authority(path, look_every_s=0, must_be_right=False)
        for _ in range(3):
            with pytest.raises(UnauthorizedError):
                authority.user_of_token("Bearer very-secret-token")
        assert "all calls are refused until the permissions file is valid" in caplog.text
        path.write_text(_FILE)
        assert authority.user_of_token("Bearer very-secret-token").name == "shop"

    def test_a_file_that_others_can_read_is_reported(self, path, caplog):
        os.chmod(path, 0o644)
        Authority(path)
        assert "chmod 600" in caplog.text


def test_no_text_of_ours_holds_a_secret(authority):
    user = authority.user_of_token("Bearer very-secret-token")
    permissions = parse_permissions(_FILE)
    for text in (repr(user), str(user), repr(permissions), repr(authority), repr(user.rules)):
        assert not any(secret in text for secret in _SECRETS)
        assert repr(user.token_hash) not in text


class TestRates:
    def test_a_client_may_save_up_two_seconds_and_then_has_the_rate(self):
        now_s = 0.0
        rates = Rates(10, now_s=lambda: now_s)
        for _ in range(20):
            rates.spend("a")
        with pytest.raises(TooManyRequestsError, match="10 calls a second"):
            rates.spend("a")
        rates.spend("b")  # another is unharmed
        now_s = 0.1
        rates.spend("a")
        with pytest.raises(TooManyRequestsError):
            rates.spend("a")

    def test_only_so_many_are_remembered(self):
        rates = Rates(1, clients_max=100)
        for number in range(1000):
            rates.spend(str(number))
        assert len(rates) == 100
