"""Messages to which a library gave the same id: both are kept, and each is known again when repeated."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tidemill.core.errors import IdInUseError
from tidemill.core.limits import ID_CHARS_MAX
from tidemill.core.model import Draft
from tidemill.core.property_names import CARRIED_PROPERTIES

_FIRST = Draft("orders", b"first", id="made", has_made_id=True, delay_ms=60_000)
_OTHERS = {
    "body": replace(_FIRST, body=b"other"),
    "tag": replace(_FIRST, tag="other"),
    "keys": replace(_FIRST, keys=("other",)),
    "group": replace(_FIRST, message_group="other"),
    "properties": replace(_FIRST, properties={"a": "other"}),
}


def _pending(small) -> list[str]:
    return sorted(row.id for row in small.broker.views.pending())


@pytest.mark.parametrize("what", _OTHERS)
@pytest.mark.parametrize("together", [True, False])
def test_another_message_with_the_same_id_is_kept(small, what, together) -> None:
    other = _OTHERS[what]
    if together:
        first, second = small.broker.send([_FIRST, other])
    else:
        first, second = (small.broker.send([draft])[0] for draft in (_FIRST, other))
    assert first.id == "made"
    assert second.id.startswith("made-")
    assert not second.is_repeat
    assert _pending(small) == [first.id, second.id]


@pytest.mark.parametrize("delay_ms", [60_000, None])
def test_each_is_known_again_when_it_is_repeated(small, delay_ms) -> None:
    drafts = [replace(_FIRST, body=body, delay_ms=delay_ms) for body in (b"1", b"2", b"3")]
    receipts = small.broker.send(drafts)
    small.kill_and_open()
    again = [small.broker.send([draft])[0] for draft in reversed(drafts)]
    assert [receipt.id for receipt in reversed(again)] == [receipt.id for receipt in receipts]
    assert all(receipt.is_repeat for receipt in again)
    assert small.broker.store.totals.overall()[0] == 3


def test_what_belongs_to_the_attempt_and_not_to_the_message_tells_nothing_apart(small) -> None:
    first = small.send("orders", id="made", has_made_id=True, properties={"a": "b"})
    carried = dict.fromkeys(CARRIED_PROPERTIES, "of this attempt")
    again = small.send(
        "orders", id="made", has_made_id=True, properties={"a": "b"}, carried=carried, born_at_ms=1
    )
    assert again.is_repeat
    assert again.id == first.id


def test_many_single_sends_are_distinguished_too(small) -> None:
    ones = [replace(_FIRST, id=f"made-{number}", body=b"one") for number in range(12)]
    others = [replace(draft, body=b"other") for draft in ones]
    small.broker.send_each(ones)
    answers = small.broker.send_each(others)
    assert len({*_pending(small)}) == 24
    assert {answer.id for answer in answers}.isdisjoint({draft.id for draft in ones})


def test_the_handle_of_each_cancels_its_own(small) -> None:
    first, second = small.broker.send([_FIRST, _OTHERS["body"]])
    small.broker.cancel([second.handle])
    assert _pending(small) == [first.id]


def test_an_id_that_the_caller_gave_is_its_word(small) -> None:
    first = small.send("orders", b"first", id="given", delay_ms=60_000)
    again = small.send("orders", b"first", id="given", delay_ms=90_000)
    assert (again.id, again.is_repeat) == (first.id, True)
    with pytest.raises(IdInUseError):
        small.send("orders", b"other", id="given", delay_ms=60_000)


def test_a_long_id_stays_within_its_limit(small) -> None:
    long = replace(_FIRST, id="m" * ID_CHARS_MAX)
    _, second = small.broker.send([long, replace(long, body=b"other")])
    assert len(second.id) == ID_CHARS_MAX


class TestTransactions:
    def test_another_half_with_the_same_id_is_a_transaction_of_its_own(self, small) -> None:
        verbs = small.broker.transactions
        (first,) = verbs.begin([_FIRST])
        (second,) = verbs.begin([_OTHERS["body"]])
        assert first.id != second.id
        assert [receipt.id for receipt in verbs.begin([_FIRST, _OTHERS["body"]])] == [first.id, second.id]
        verbs.commit("orders", second.id)
        verbs.roll_back("orders", first.id)
        assert _pending(small) == [second.id]

    def test_a_half_that_was_committed_is_known_again_and_another_is_not_swallowed(self, small) -> None:
        verbs = small.broker.transactions
        verbs.begin([_FIRST])
        verbs.commit("orders", "made")
        (again,) = verbs.begin([_FIRST])
        (other,) = verbs.begin([_OTHERS["tag"]])
        assert again.id == "made"
        assert other.id != "made"
        assert len(small.broker.store.open_transactions) == 1
        verbs.roll_back("orders", other.id)
