"""The Flight door's life: opened again on its port, and closed whoever still holds a stream."""

from __future__ import annotations

import contextlib

import pyarrow as pa
import pytest
from pyarrow import flight

from tidemill.server.flight_opening import FlightService
from tidemill.server.serve_plan import ServePlan


@pytest.fixture
def service(small, tmp_path):
    service = FlightService(ServePlan(str(tmp_path), flight_port=0), small.broker)
    yield service
    service.close()


def _put(client) -> tuple:
    batch = pa.record_batch({"body": [b"x"]})
    patient = flight.FlightCallOptions(timeout=120)
    writer, answers = client.do_put(flight.FlightDescriptor.for_path("t"), batch.schema, patient)
    writer.write_batch(batch)
    assert answers.read() is not None
    return writer, answers


def _finish(writer, answers) -> None:
    writer.done_writing()
    answers.read()
    writer.close()


@pytest.mark.parametrize("how", ["reopen", "close"])
def test_who_holds_a_stream_and_says_nothing_is_sent_away(service, how) -> None:
    with flight.connect(f"grpc://127.0.0.1:{service.port}") as client:
        writer, answers = _put(client)
        getattr(service, how)()
        with pytest.raises(flight.FlightUnavailableError):
            _finish(writer, answers)
        with contextlib.suppress(pa.ArrowException):
            writer.close()


def test_it_is_opened_again_where_callers_have_found_it(service) -> None:
    port = service.port
    service.reopen()
    assert service.port == port
    with flight.connect(f"grpc://127.0.0.1:{port}") as client:
        writer, _ = _put(client)
        writer.close()
    service.close()
    service.reopen()  # one that was closed stays so
    with flight.connect(f"grpc://127.0.0.1:{port}") as client, pytest.raises(pa.ArrowException):
        _put(client)


def test_without_flight_there_is_nothing_to_open(small, tmp_path) -> None:
    service = FlightService(ServePlan(str(tmp_path), flight_port=-1), small.broker)
    service.reopen()
    assert service.port is None
    service.close()
