"""Whatever is asked of the admin API: it answers by its own description, and never with 500."""

from __future__ import annotations

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import response_schema_conformance

from helpers.asgi_caller import AsgiCaller
from helpers.hypothesis_examples import examples
from helpers.open_app import OpenApp
from helpers.small_broker import SmallBroker

# These move the clock by years or write to any path.
_LEFT_OUT = "^/v1/(clock/advance|backup)$"
_SETTINGS = settings(
    max_examples=examples(20), deadline=None, suppress_health_check=list(HealthCheck), database=None
)


@pytest.fixture(scope="module")
def app(tmp_path_factory):
    small = SmallBroker(tmp_path_factory.mktemp("fuzz") / "data")
    small.send("orders", b"x", delay_ms=60_000, keys=("k",))
    yield OpenApp(small.broker)
    small.check()
    small.close()


@pytest.mark.slow
def test_no_request_makes_it_fail(app) -> None:
    schema = schemathesis.openapi.from_asgi("/openapi.json", app).exclude(path_regex=_LEFT_OUT)
    operations = [result.ok() for result in schema.get_all_operations()]
    assert len(operations) > 15
    for operation in operations:

        @_SETTINGS
        @given(case=operation.as_strategy())
        def ask(case) -> None:
            if isinstance(case.body, dict) and "wait_ms" in case.body:
                case.body["wait_ms"] = 0
            case.call_and_validate(checks=(not_a_server_error, response_schema_conformance))

        ask()


@given(st.binary(max_size=200))
@settings(max_examples=examples(100), deadline=None, suppress_health_check=list(HealthCheck))
def test_no_bytes_make_the_batch_endpoint_fail(app, content) -> None:
    with AsgiCaller(app) as http:
        assert http.post("/v1/send-batch", content=b"TMB1" + content).status_code in (200, 400)
