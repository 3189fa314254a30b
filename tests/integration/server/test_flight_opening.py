"""The Flight server's life: opened again on its port, and closed even if a caller holds a stream."""

from __future__ import annotations

import contextlib
import socket

import pyarrow as pa
import pytest
from pyarrow import flight

from tidemill.core.errors import StorageError
from tidemill.server.flight.flight_opening import FlightService
from tidemill.server.process.serve_plan import ServePlan


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


@pytest.fixture
def taken():
    with socket.create_server(("127.0.0.1", 0)) as somebody:
        yield somebody


def test_a_port_that_is_taken_at_the_first_start_is_refused(small, tmp_path, taken) -> None:
    plan = ServePlan(str(tmp_path), flight_port=taken.getsockname()[1])
    with pytest.raises(StorageError, match="choose another --flight-port"):
        FlightService(plan, small.broker)


def test_a_port_that_was_taken_while_the_broker_started_again_is_waited_for(small, tmp_path, taken) -> None:
    port = taken.getsockname()[1]
    service = FlightService(ServePlan(str(tmp_path), flight_port=port, is_again=True), small.broker)
    assert service.port is None
    assert service.awaits_port
    assert not service.open_if_free()
    taken.close()
    assert service.open_if_free()
    assert (service.port, service.awaits_port) == (port, False)
    with flight.connect(f"grpc://127.0.0.1:{port}") as client:
        writer, _ = _put(client)
        writer.close()
    assert service.open_if_free()  # and stays as it is
    service.close()


def test_one_that_is_closed_waits_for_its_port_no_more(small, tmp_path, taken) -> None:
    port = taken.getsockname()[1]
    service = FlightService(ServePlan(str(tmp_path), flight_port=port, is_again=True), small.broker)
    service.close()
    taken.close()
    assert service.open_if_free()
    assert service.port is None
