"""What the contract of a runner is tried on. Each takes a `World`, plays, and checks what came out of it.

Times are ms since the scenario's begin; what is due later than the lead goes through the wheel.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pyarrow as pa

from pipeline.contract_world import World
from tidemill.core.limits import DAY_MS, HOUR_MS
from tidemill.core.model import Handle

LEAD_MS = 60_000
_BULK = 20_000


def near_and_far(world: World) -> None:
    """Due times on both sides of the lead, many of them equal, in several topics."""
    for topic in ("a", "b", "c"):
        world.send(
            [
                (f"{topic}{i}".encode(), due)
                for i, due in enumerate(
                    [1, 999, 1_000, 1_001, LEAD_MS - 1, LEAD_MS, LEAD_MS + 1, 90_000, 90_000, 61_500, 90_001]
                )
            ],
            topic=topic,
        )
    world.advance_to(2_000)
    world.send([(f"later{i}".encode(), 90_000 + i % 3) for i in range(40)], topic="a")
    world.advance_to(70_000)
    world.advance_to(200_000)
    world.check_exact()


def cancels(world: World) -> None:
    """Before it is absorbed, after, when it is handed over, when it is gone: always a definite answer."""
    early = world.send([(f"e{i}".encode(), 300_000 + i) for i in range(6)])
    assert world.cancel(early[:2]) == ["cancelled"] * 2
    world.advance_to(100_000)  # absorbed
    assert world.cancel(early[1:4]) == ["already-cancelled", "cancelled", "cancelled"]
    world.advance_to(260_000)  # handed over: due within the lead
    assert world.cancel(early[3:5]) == ["already-cancelled", "cancelled"]
    world.advance_to(400_000)
    assert world.cancel(early[4:]) == ["already-cancelled", "released"]
    keyed = world.send([(f"k{i}".encode(), 600_000 + i) for i in range(5)], keys=("same",))
    lone = world.send([(b"by range", 700_000)])
    world.advance_to(500_000)
    topic = keyed[0].topic
    world.answers.append(world.broker.cancel_where(topic, key="same"))
    world.answers.append(
        world.broker.cancel_where(topic, from_ms=world.start_ms + 700_000, to_ms=world.start_ms + 700_001)
    )
    assert world.answers[-2:] == [5, 1]
    world.forget(*keyed, *lone)
    world.advance_to(800_000)
    world.check_exact()


def reschedules(world: World) -> None:
    """Sooner, later, twice, across the lead, and too late."""
    handles = world.send([(f"r{i}".encode(), 300_000 + i) for i in range(8)])
    assert world.reschedule(handles[:2], 500_000) == ["moved"] * 2
    world.advance_to(100_000)
    assert world.reschedule(handles[2:4], 110_000) == ["moved"] * 2  # far before, near now
    assert world.reschedule(handles[:1], 130_000) == ["moved"]
    world.advance_to(270_000)
    assert world.reschedule(handles[4:5], 10 * HOUR_MS) == ["moved"]  # handed over already
    assert world.reschedule(handles[5:6], 271_000) == ["moved"]
    world.advance_to(350_000)
    assert world.reschedule(handles[6:7], 400_000) == ["released"]
    world.advance_to(11 * HOUR_MS)
    world.check_exact()


def released_now(world: World) -> None:
    """In the wheel, rolling, handed over, near: released by a reschedule, each at once, and once."""
    handles = world.send([(f"n{i}".encode(), due) for i, due in enumerate((9 * DAY_MS, HOUR_MS, 200_000))])
    world.advance_to(150_000)  # absorbed; the last is handed over already
    (near,) = world.send([(b"near", 190_000)])
    (untouched,) = world.send([(b"untouched", 300_000)])
    assert world.reschedule([*handles, near], 150_000) == ["moved"] * 4
    world.advance_to(150_001)
    assert {queued.message.body for _, _, queued in world.came_out()} == {b"n0", b"n1", b"n2", b"near"}
    assert world.reschedule([*handles, near], 150_002) == ["released"] * 4
    world.advance_to(10 * DAY_MS)
    assert world.cancel([untouched]) == ["released"]
    world.check_exact()


def on_levels(world: World) -> None:
    """All eighteen, beside messages of the wheel in the same topic; some cancelled, one moved."""
    delays_ms = world.broker.settings.level_delays_ms
    numbers = range(1, len(delays_ms) + 1)
    first = world.send_on_levels([(f"l{level}".encode(), level) for level in numbers], delays_ms)
    far = world.send([(f"f{i}".encode(), 120_500 + 1_000 * i) for i in range(20)])
    world.advance_to(2_500)
    second = world.send_on_levels([(f"m{level}".encode(), level) for level in numbers], delays_ms)
    assert world.cancel([first[4], second[17], far[3]]) == ["cancelled"] * 3
    assert world.reschedule([second[16]], 3 * HOUR_MS) == ["moved"]
    world.advance_to(HOUR_MS)
    world.advance_to(4 * HOUR_MS)
    world.check_exact()


def rolls(world: World) -> None:
    """Further than the wheel's window: placed again and again until their day comes."""
    days = (1, 2, 3, 5, 9, 16, 40)
    world.send([(f"d{day}+{ms}".encode(), day * DAY_MS + ms) for day in days for ms in (0, 1, 999, 1_000)])
    (dropped,) = world.send([(b"cancelled while it rolls", 30 * DAY_MS)])
    world.advance_to(12 * DAY_MS)
    assert world.cancel([dropped]) == ["cancelled"]
    world.advance_to(39 * DAY_MS)
    world.advance_to(41 * DAY_MS)
    world.check_exact()
    rolled = {queued.message.body.split(b"+")[0]: queued.rolls for _, _, queued in world.came_out()}
    assert rolled[b"d1"] == 0
    assert None not in rolled.values()


def leaps(world: World) -> None:
    """The clock moves by milliseconds and by days, with sends between."""
    at = 0
    for number, span in enumerate((7, 1_000, 59_000, DAY_MS, 1, 3 * DAY_MS, 60_500)):
        world.send([(f"l{number}-{i}".encode(), at + 40_000 * (i + 1)) for i in range(12)])
        at += span
        world.advance_to(at)
    world.advance_to(at + HOUR_MS)
    world.check_exact()


def ordered_groups(world: World) -> None:
    """FIFO groups: by due time, then in order of sending, near and far mixed."""
    for turn in range(4):
        for group in ("g1", "g2", "g3"):
            world.send(
                [(f"{group}-{turn}-{i}".encode(), 200_000 + 1_000 * ((7 * i + turn) % 5)) for i in range(8)],
                topic="fifo",
                message_group=group,
            )
        world.advance_to(45_000 * (turn + 1))
    world.advance_to(300_000)
    world.check_exact()


def asleep_for_weeks(world: World) -> None:
    """All that fell due meanwhile comes at once, by due time, groups strictly; what is due later waits."""
    for number, group in enumerate(("g1", "g2", "g3")):
        dues = [DAY_MS + (7919 * (i + number) % 1_000) * 1_700_003 for i in range(400)]
        world.send(
            [(f"{group}-{i}".encode(), due) for i, due in enumerate(dues)], topic="fifo", message_group=group
        )
    world.send([(b"later", 30 * DAY_MS)], topic="later")
    world.advance_to(100_000)
    world.sleep_until(21 * DAY_MS)
    assert len(list(world.came_out())) == 1_200
    world.advance_to(31 * DAY_MS)
    world.check_exact(held_until={"fifo": 21 * DAY_MS})


def paused_topic(world: World) -> None:
    """A paused topic holds back only its own messages; when it goes on, all come in order."""
    for topic in ("held", "free"):
        world.send([(f"{topic}{i}".encode(), 80_000 + 500 * (i % 7)) for i in range(30)], topic=topic)
    world.change_topic("held", is_paused=True)
    world.advance_to(150_000)
    assert not [queued for topic, _, queued in world.came_out() if topic.endswith("held")]
    world.change_topic("held", is_paused=False)
    world.advance_to(150_001)
    held = [queued.released_at_ms for topic, _, queued in world.came_out() if topic.endswith("held")]
    assert set(held) <= {world.start_ms + 150_000, world.start_ms + 150_001}
    world.check_exact(held_until={"held": held[0] - world.start_ms})
    world.answers.append(len(held))


def in_bulk(world: World) -> None:
    """A table of many thousands, a third of it cancelled by handle."""
    dues = 100_000 + (np.arange(_BULK, dtype=np.int64) * 7919) % 360 * 9_999
    (first,) = world.send([(b"first", 90_000)])
    topic = first.topic
    table = pa.table(
        {
            "body": pa.array([f"b{i:05d}".encode() for i in range(_BULK)]),
            "deliver_at": pa.array(world.start_ms + dues).cast(pa.timestamp("ms", "UTC")),
        }
    )
    handles: list[Handle] = list(world.broker.send_table(table, topic=topic).handles())
    for i, handle in enumerate(handles):
        world.expect(f"b{i:05d}".encode(), int(dues[i]), handle)
    world.advance_to(80_000)
    assert set(world.cancel(handles[::3])) == {"cancelled"}
    world.advance_to(4_000_000)
    world.check_exact()


SCENARIOS: dict[str, Callable[[World], None]] = {
    scenario.__name__: scenario
    for scenario in (
        near_and_far,
        cancels,
        reschedules,
        released_now,
        on_levels,
        rolls,
        leaps,
        ordered_groups,
        asleep_for_weeks,
        paused_topic,
        in_bulk,
    )
}
