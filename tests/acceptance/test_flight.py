"""Flight against a real `tidemill serve`, killed in the middle: a batch is there whole and once, or not."""

from __future__ import annotations

import json
import re
import threading
import urllib.request
from collections import Counter
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import flight

import tidemill
from acceptance.command_line import run
from acceptance.serving import Served, wait_until

pytestmark = pytest.mark.slow

_ROWS = 5_000
_BATCHES = 60


@pytest.fixture
def served(tmp_path: Path):
    served = Served(tmp_path / "data", "--pipeline", "embedded", "--flight-port", "0")
    served.start()
    yield served
    served.stop()


def _flight_port(served: Served) -> int:
    with urllib.request.urlopen(f"http://{served.endpoint}/healthz", timeout=5) as answer:
        return json.load(answer)["flight"]["port"]


def _connect(served: Served) -> flight.FlightClient:
    return flight.connect(f"grpc://127.0.0.1:{_flight_port(served)}")


def _batch(number: int) -> pa.RecordBatch:
    keys = [f"{number}-{row}" for row in range(_ROWS)]
    return pa.record_batch(
        {"body": [b"x" * 100] * _ROWS, "delay_ms": [3_600_000] * _ROWS, "key": keys, "once": [True] * _ROWS}
    )


def _put_all(client: flight.FlightClient, on_answer) -> None:
    batches = [_batch(number) for number in range(_BATCHES)]
    writer, answers = client.do_put(flight.FlightDescriptor.for_path("bulk"), batches[0].schema)
    try:
        for number, batch in enumerate(batches):
            writer.write_batch(batch)
            if answers.read() is None:
                break
            on_answer(number)
    finally:
        writer.close()


def _rows_by_batch(served: Served) -> Counter[int]:
    with tidemill.Client(served.endpoint) as client:
        keys = client.tables.pending("bulk", columns=["key"])["key"].to_pylist()
    assert len(set(keys)) == len(keys)
    return Counter(int(key.split("-")[0]) for key in keys)


def test_killed_in_the_middle_of_a_put_and_put_again(served: Served) -> None:
    acknowledged: list[int] = []

    def on_answer(number: int) -> None:
        acknowledged.append(number)
        if number == _BATCHES // 3:
            threading.Timer(0.03, served.kill_broker).start()

    with pytest.raises(pa.ArrowException):
        _put_all(_connect(served), on_answer)
    wait_until(served.is_ready, "the broker is back")
    found = _rows_by_batch(served)
    assert set(acknowledged) <= set(found)
    # Beyond those, at most the one under way may be there; each whole.
    assert len(found) <= len(acknowledged) + 1
    assert set(found.values()) == {_ROWS}

    again: list[int] = []
    _put_all(_connect(served), again.append)
    assert again == list(range(_BATCHES))
    assert _rows_by_batch(served) == dict.fromkeys(range(_BATCHES), _ROWS)


def test_a_client_waits_a_kill_out_and_stores_each_row_once(served: Served) -> None:
    count = 600_000
    columns = {"body": pa.repeat(pa.scalar(b"y" * 100), count), "delay_ms": pa.repeat(3_600_000, count)}
    table = pa.table(columns)
    with tidemill.Client(served.endpoint, retry_for="60s") as client:
        threading.Timer(0.4, served.kill_broker).start()
        answers = client.schedule(table, topic="bulk")
        assert len(answers) == count
        assert not answers.errors
        wait_until(served.is_ready, "the broker is back")
        pending = client.tables.pending("bulk", columns=["id", "seq"])
        assert pending.num_rows == count
        assert len(set(pending["id"].to_pylist())) == count
        first, last = answers[0], answers[-1]
        assert client.cancel_many([first.handle, last.handle]) == [tidemill.CancelAnswer.CANCELLED] * 2
        handles = [answer.handle for answer in answers[:1_000]]
        said = client.cancel_many(handles)
        assert said == [tidemill.CancelAnswer.ALREADY_CANCELLED] + [tidemill.CancelAnswer.CANCELLED] * 999


def test_a_table_with_a_wrong_row_answers_each(served: Served) -> None:
    with tidemill.Client(served.endpoint) as client:
        answers = client.schedule(pa.table({"body": ["a", "b", "c"], "tag": ["fine", "a|b", ""]}), topic="t")
        assert [isinstance(answer, tidemill.SendResult) for answer in answers] == [True, False, True]
        assert list(answers.errors) == [1]
        assert client.tables.messages("t")["body"].to_pylist() == [b"a", b"c"]


def test_history_shows_what_was_released(served: Served) -> None:
    with tidemill.Client(served.endpoint) as client:
        client.schedule(pa.table({"body": ["a"] * 100, "delay_ms": [50] * 100}), topic="soon")
        wait_until(lambda: client.tables.history("soon").num_rows == 100, "all were released")
        history = client.tables.history("soon")
        assert min(history["lateness_ms"].to_pylist()) >= 0
        assert set(history["topic"].to_pylist()) == {"soon"}


def test_a_port_in_use_is_reported(served: Served, tmp_path: Path) -> None:
    port = str(_flight_port(served))
    flags = ("--port", "0", "--pipeline", "embedded", "--flight-port", port)
    failed = run("serve", "--data", tmp_path / "other", *flags)
    assert failed.returncode == 1
    assert "--flight-port" in failed.stdout + failed.stderr


def test_the_examples_of_the_document_run(served: Served) -> None:
    text = (Path(__file__).resolve().parents[2] / "docs" / "flight.md").read_text()
    text = text.replace("127.0.0.1:8081", served.endpoint)
    text = text.replace("127.0.0.1:8082", f"127.0.0.1:{_flight_port(served)}")
    blocks = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    assert len(blocks) == 4
    for block in blocks:
        exec(compile(block, "flight.md", "exec"), {})
