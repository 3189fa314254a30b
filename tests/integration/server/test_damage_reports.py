"""Damage to the commit log as HTTP, the clients, the metrics and the command line show it."""

from __future__ import annotations

import asyncio
import base64
import json

import pytest

from helpers.asgi_caller import AsgiCaller
from helpers.http_broker import http_broker
from helpers.log_damage import damage_frame, damage_message, place_in_queue
from helpers.open_app import OpenApp
from helpers.small_broker import START_MS, SmallBroker
from tidemill import AsyncClient, Client
from tidemill.cli.main import run

HOUR_MS = 3_600_000


@pytest.fixture
def small(tmp_path):
    small = SmallBroker(tmp_path / "data", queues_per_topic=1)
    small.send("t", b"pending", delay_ms=HOUR_MS, keys=("k",))
    small.send("t", b"at once", keys=("k",))
    damage_message(small, 0)
    damage_frame(small, place_in_queue(small, "t", 0, 0) >> 16)
    small.broker.run_due()
    yield small
    small.close()


@pytest.fixture
def http(small):
    with AsgiCaller(OpenApp(small.broker)) as http:
        yield http


def test_status_metrics_and_the_list_say_what_is_damaged(http, small):
    assert http.get("/v1/status").json()["damage"] == {"frames": 2, "messages": 2, "pending": 1}
    figures = http.get("/metrics").text
    for line in ("damaged_frames 2.0", "damaged_messages 2.0", "damaged_pending_messages 1.0"):
        assert f"tidemill_{line}" in figures
    said = http.get("/v1/damaged").json()
    assert (said["frames"], said["messages"], said["pending"]) == (2, 2, 1)
    waiting, sent = said["damaged"]
    assert (waiting["state"], waiting["seq"], waiting["offset"]) == ("pending", 0, None)
    assert (waiting["deliver_at_ms"], waiting["stored_at_ms"]) == (START_MS + HOUR_MS, START_MS)
    assert waiting["file"].endswith(".log") and waiting["position"] == waiting["log_offset"]
    assert len(waiting["id_hash"]) == 16
    assert (sent["state"], sent["queue"], sent["offset"], sent["seq"]) == ("sent", 0, 0, None)
    assert http.get("/v1/damaged?limit=1").json()["damaged"] == [waiting]


def test_every_look_shows_it_and_none_fails(http):
    (pending,) = http.get("/v1/pending").json()["pending"]
    assert pending["is_damaged"]
    story = http.get("/v1/message", params={"handle": pending["handle"]}).json()
    assert story["is_damaged"] and story["state"] == "pending" and story["body"] == ""
    found = http.get("/v1/topics/t/find?key=k").json()["messages"]
    assert [one["is_damaged"] for one in found] == [True, True]
    (read,) = http.get("/v1/topics/t/read").json()["messages"]
    assert read["is_damaged"]
    moved = http.post("/v1/reschedule", json={"handles": [pending["handle"]], "by_ms": 5}).json()
    assert (moved["moved"], moved["answers"][0]["answer"]) == (0, "damaged")
    assert http.post("/v1/cancel", json={"handles": [pending["handle"]]}).json()["cancelled"] == 1
    assert http.get("/v1/status").json()["damage"] == {"frames": 2, "messages": 1, "pending": 0}


def test_both_clients_and_the_command_line_list_it(tmp_path, capsys):
    with http_broker(tmp_path / "data") as server, Client(server.endpoint) as client:
        client.send("t", b"body", delay="1h")
        assert client.admin.damaged() == []
        assert run(["damaged", "--endpoint", server.endpoint]) == 0
        assert "no message" in capsys.readouterr().out

        async def listed():
            async with AsyncClient(server.endpoint) as others:
                return await others.admin.damaged(limit=5)

        assert asyncio.run(listed()) == []


def test_a_directory_is_verified_whole_and_its_frames_exported(small, capsys):
    small.close()
    assert run(["damaged", str(small.directory), "--bytes"]) == 1
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [row["state"] for row in rows] == ["pending", "sent"]
    assert base64.b64decode(rows[0]["frame_base64"]).startswith(b"TMFR")
    assert run(["damaged", str(small.directory)]) == 1
    words = capsys.readouterr().out
    assert "pending" in words and ".log" in words
    small.open()
