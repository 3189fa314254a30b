"""Bad input: each has its own error, names limit and value, and nothing is written."""

from __future__ import annotations

import pyarrow as pa
import pytest

from tidemill.core.config import BrokerSettings, settings_from
from tidemill.core.errors import (
    BodyTooLargeError,
    IllegalDelayError,
    IllegalGroupError,
    IllegalHandleError,
    IllegalIdError,
    IllegalKeyError,
    IllegalLevelError,
    IllegalMessageGroupError,
    IllegalPropertyError,
    IllegalTagError,
    IllegalTopicError,
    InvalidAckTokenError,
    PropertiesTooLargeError,
    RequestError,
    TidemillError,
    TopicExistsError,
    TopicInUseError,
    UnknownTopicError,
    WrongMessageTypeError,
)
from tidemill.core.limits import DAY_MS
from tidemill.core.model import Draft, Handle, Once, TopicType

BAD_DRAFTS = [
    (IllegalTopicError, "1 to 127", Draft("", b"")),
    (IllegalTopicError, "128 characters; use 1 to 127", Draft("t" * 128, b"")),
    (IllegalTopicError, "'a b'", Draft("a b", b"")),
    (IllegalTopicError, "reserved", Draft("%DLQ%g", b"")),
    (IllegalTopicError, "reserved", Draft("%RETRY%g", b"")),
    (IllegalTopicError, "reserved", Draft("rmq_sys_x", b"")),
    (BodyTooLargeError, "1001 bytes, the limit is 1000", Draft("t", bytes(1001))),
    (PropertiesTooLargeError, "16385 bytes together", Draft("t", b"", tag="t" * 16_385)),
    (IllegalTagError, r"'a\|b'", Draft("t", b"", tag="a|b")),
    (IllegalTagError, "' a'", Draft("t", b"", tag=" a")),
    (IllegalTagError, "control", Draft("t", b"", tag="a\x07")),
    (IllegalTagError, "control", Draft("t", b"", tag="a\udcff")),
    (PropertiesTooLargeError, "16385 bytes together", Draft("t", b"", keys=("k" * 16_384, "l"))),
    (IllegalKeyError, "a key is empty", Draft("t", b"", keys=("",))),
    (IllegalKeyError, "'a b'", Draft("t", b"", keys=("a b",))),
    (IllegalKeyError, "blank or a control", Draft("t", b"", keys=("\udcff",))),
    (IllegalKeyError, "exactly one key, 0", Draft("t", b"", delay_ms=1, once=Once.KEEP)),
    (
        IllegalKeyError,
        "exactly one key, 0",
        Draft("t", b"", delay_ms=1, id="made", has_made_id=True, once=Once.KEEP),
    ),
    (IllegalKeyError, "exactly one key, 0", Draft("t", b"", delay_ms=1, id="i", once=Once.REPLACE)),
    (IllegalKeyError, "exactly one key, 2", Draft("t", b"", delay_ms=1, keys=("a", "b"), once=Once.REPLACE)),
    (IllegalIdError, "1 to 128", Draft("t", b"", id="")),
    (IllegalIdError, "1 to 128", Draft("t", b"", id="i" * 129)),
    (IllegalIdError, "without blanks", Draft("t", b"", id="a\nb")),
    (
        PropertiesTooLargeError,
        "129 properties were given, the limit is 128",
        Draft("t", b"", properties=dict.fromkeys(map(str, range(129)), "")),
    ),
    (
        PropertiesTooLargeError,
        "16385 bytes together, the limit is 16384",
        Draft("t", b"", properties={"p": "v" * 16384}),
    ),
    (IllegalPropertyError, "empty or has a control", Draft("t", b"", properties={"": "v"})),
    (IllegalPropertyError, "empty or has a control", Draft("t", b"", properties={"a\x00": "v"})),
    (IllegalPropertyError, "no text", Draft("t", b"", properties={"a": "\ud800"})),
    (IllegalPropertyError, "are reserved: UNIQ_KEY;", Draft("t", b"", properties={"UNIQ_KEY": "v"})),
    (IllegalMessageGroupError, "at most 64", Draft("t", b"", message_group="g" * 65)),
    (IllegalLevelError, "level -1 is negative; use 1 to 18", Draft("t", b"", level=-1)),
    (IllegalDelayError, "delay_ms -1 is negative; use 0 or more", Draft("t", b"", delay_ms=-1)),
    (
        IllegalDelayError,
        "a delay of 30d.* beyond the limit of 30d",
        Draft("t", b"", delay_ms=30 * DAY_MS + 1),
    ),
    (IllegalDelayError, "beyond the limit of 30d", Draft("t", b"", deliver_at_ms=1 << 62)),
    (IllegalDelayError, "beyond the limit of 30d", Draft("t", b"", delay_ms=1 << 80)),
    (RequestError, "only one of", Draft("t", b"", delay_ms=1, deliver_at_ms=1)),
    (RequestError, "only one of", Draft("t", b"", delay_ms=1, level=1)),
    (
        WrongMessageTypeError,
        "'normal-only' takes normal messages, this one is delay",
        Draft("normal-only", b"", delay_ms=1),
    ),
    (WrongMessageTypeError, "takes delay messages, this one is normal", Draft("delay-only", b"")),
    (WrongMessageTypeError, "takes fifo messages, this one is delay", Draft("fifo-only", b"", delay_ms=1)),
    (
        WrongMessageTypeError,
        "takes delay messages, this one is fifo",
        Draft("delay-only", b"", delay_ms=1, message_group="g"),
    ),
]


@pytest.fixture
def strict(make_small):
    small = make_small(body_bytes_max=1000, max_delay_ms=30 * DAY_MS)
    for kind in (TopicType.NORMAL, TopicType.DELAY, TopicType.FIFO):
        small.broker.topics.create(f"{kind.value}-only", kind)
    return small


def test_every_bad_draft_has_its_own_error_and_leaves_no_trace(strict):
    end = strict.log_end
    for expected, text, draft in BAD_DRAFTS:
        for send in (strict.broker.send, lambda drafts: [_raise(a) for a in strict.broker.send_each(drafts)]):
            with pytest.raises(expected, match=text) as caught:
                send([draft])
            assert type(caught.value) is expected, (text, caught.value)
        with pytest.raises(expected):
            strict.broker.send([Draft("not-there-yet", b"fine"), draft])
    assert strict.log_end == end
    assert strict.broker.store.topics.named("not-there-yet") is None


def _raise(answer):
    if isinstance(answer, TidemillError):
        raise answer
    return answer


def test_the_largest_of_everything_is_taken(strict):
    strict.broker.send(
        [
            Draft(
                "t" * 127,
                bytes(1000),
                delay_ms=30 * DAY_MS,
                id="i" * 128,
                keys=tuple("k" * 250 + f"{i:06d}" for i in range(32)),
                tag="ü" * 2048,
                message_group="g" * 64,
                properties={"p": "v" * 4095},
            )
        ]
    )
    assert strict.broker.views.pending()[0].id == "i" * 128


def test_wrong_requests_to_the_other_verbs_write_nothing(small):
    broker = small.broker
    broker.topics.create("t", TopicType.DELAY, 2)
    small.send("t", delay_ms=60_000, keys=("k",))
    end = small.log_end
    handle = broker.views.pending()[0].handle
    wrong = [
        (
            UnknownTopicError,
            "'nope' does not exist; create it",
            lambda: broker.send([Draft("nope", b"")], creates_topics=False),
        ),
        (UnknownTopicError, "nope", lambda: broker.cancel_where("nope", key="k")),
        (UnknownTopicError, "nope", lambda: broker.receive("nope", "g")),
        (
            UnknownTopicError,
            "'nope' does not exist; `tidemill topics list`",
            lambda: broker.topics.delete("nope"),
        ),
        (UnknownTopicError, "topics list", lambda: broker.topics.change("nope", is_paused=True)),
        (UnknownTopicError, "topics list", lambda: broker.reschedule_where("nope", key="k", by_ms=1)),
        (IllegalDelayError, "delay_ms -5 is negative", lambda: broker.reschedule([handle], delay_ms=-5)),
        (UnknownTopicError, "nope", lambda: broker.views.pending(topic_name="nope")),
        (RequestError, "range is empty", lambda: broker.cancel_where("t", from_ms=5, to_ms=5)),
        (RequestError, "start .* is after end", lambda: broker.cancel_where("t", from_ms=6, to_ms=5)),
        (
            RequestError,
            "start .* is after end",
            lambda: broker.reschedule_where("t", from_ms=6, to_ms=5, by_ms=1),
        ),
        (RequestError, "1970-01-01T00:00:00.006Z", lambda: broker.views.pending(from_ms=6, to_ms=5)),
        (RequestError, "start 1125", lambda: broker.views.pending(from_ms=1 << 50, to_ms=-1)),
        (
            RequestError,
            "exactly one of deliver_at_ms, delay_ms and by_ms",
            lambda: broker.reschedule([handle]),
        ),
        (
            RequestError,
            "exactly one of deliver_at_ms, delay_ms and by_ms",
            lambda: broker.reschedule_where("t", key="k", deliver_at_ms=1, by_ms=1),
        ),
        (
            IllegalDelayError,
            "beyond the limit of 3650d",
            lambda: broker.reschedule([handle], by_ms=3651 * DAY_MS),
        ),
        (IllegalDelayError, "beyond the limit", lambda: broker.reschedule([handle], by_ms=1 << 80)),
        (IllegalDelayError, "beyond the limit", lambda: broker.reschedule([handle], deliver_at_ms=1 << 80)),
        (TopicExistsError, "type delay and 2 queues", lambda: broker.topics.create("t", TopicType.FIFO)),
        (TopicExistsError, "2 queues", lambda: broker.topics.create("t", TopicType.DELAY, 3)),
        (TopicInUseError, "1 messages wait", lambda: broker.topics.delete("t")),
        (
            RequestError,
            "1025 is not possible; use 1 to 1024",
            lambda: broker.topics.create("q", TopicType.MIXED, 1025),
        ),
        (RequestError, "queues 0 is not possible", lambda: broker.topics.create("q", TopicType.MIXED, 0)),
        (RequestError, "rate .* -1 is not possible", lambda: broker.topics.change("t", release_rate_max=-1)),
        (IllegalGroupError, "256 characters; use 1 to 255", lambda: broker.receive("t", "g" * 256)),
        (IllegalGroupError, "'a b'", lambda: broker.receiver.group("a b")),
        (RequestError, "count 0 is not possible", lambda: broker.receive("t", "g", count=0)),
        (RequestError, "invisible_ms 0 is", lambda: broker.receive("t", "g", invisible_ms=0)),
        (RequestError, "invisible_ms -1 is not possible", lambda: broker.change_invisibility([], -1)),
        (RequestError, "attempts 0 is not possible", lambda: broker.receiver.set_group("g", attempts_max=0)),
        (InvalidAckTokenError, "not an ack token: 'rubbish'", lambda: broker.ack(["rubbish"])),
        (
            RequestError,
            "unknown columns",
            lambda: broker.send_table(pa.table({"body": [b""], "x": [1]}), topic="t"),
        ),
    ]
    for expected, text, act in wrong:
        with pytest.raises(expected, match=text):
            act()
    assert small.log_end == end


@pytest.mark.parametrize(
    "text",
    [
        "",
        "rubbish",
        "AAAA",
        "dDEKYQpiCmM",
        "ä",
        str(Handle("B", "t", "i", 1 << 70)),
        str(Handle("B", "t", "i", -1)),
    ],
)
def test_what_never_was_a_handle_is_said_to_be_none(text):
    with pytest.raises(IllegalHandleError, match="not a handle"):
        Handle.parse(text)


def test_a_handle_survives_its_text():
    handle = Handle("B", "topic", "id-ü", 17)
    assert Handle.parse(f" {handle} ") == handle


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"tick_ms": 300}, "300"),
        ({"lead_ms": 1_999}, "at least two ticks"),
        ({"durability": "maybe"}, "sync or async"),
        ({"commits_in_flight": 0}, "1 to 64"),
        ({"shards": 257}, "1 to 256"),
        ({"body_bytes_max": 1 << 30}, "4194304"),
        ({"max_delay_ms": 0}, "use 1 or more"),
        ({"levels": "1s soon"}, "'soon'"),
    ],
)
def test_settings_that_cannot_be_are_refused(fields, text):
    with pytest.raises(RequestError, match=text):
        BrokerSettings(**fields)


def test_an_unknown_setting_is_named_with_the_known_ones():
    with pytest.raises(RequestError, match=r"unknown setting 'retension'.*retention"):
        settings_from({"retension": "3d"})
    assert settings_from({"max-delay": "30d", "lead": "10s"}).max_delay_ms == 30 * DAY_MS
