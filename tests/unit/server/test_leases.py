"""Leases of push clients: renewed while the client lives, returned when it does not."""

from __future__ import annotations

from tidemill.server.grpc.leases import LEASE_MS, Leases


def test_a_living_client_keeps_what_it_holds() -> None:
    leases = Leases()
    leases.seen("c", 0)
    leases.add(["r1", "r2"], "c", 0)
    assert leases.due(10_000).renew == []
    leases.seen("c", 40_000)
    due = leases.due(40_000)
    assert (due.renew, due.lost) == (["r1", "r2"], [])
    leases.drop(["r1"])
    leases.seen("c", 80_000)
    assert leases.due(40_000 + LEASE_MS - 1_000).renew == ["r2"]


def test_a_silent_client_loses_what_it_holds() -> None:
    leases = Leases()
    leases.seen("c", 0)
    leases.add(["r1"], "c", 0)
    leases.due(40_000)
    due = leases.due(80_000)
    assert (due.renew, due.lost) == ([], ["r1"])
    assert len(leases) == 0


def test_a_client_that_says_goodbye_leaves_what_it_holds() -> None:
    leases = Leases()
    for client in ("a", "b"):
        leases.seen(client, 0)
        leases.add([f"of {client}"], client, 0)
    assert leases.forget_client("a") == ["of a"]
    assert leases.holds("of b")
    assert not leases.holds("of a")
