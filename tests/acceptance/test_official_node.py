"""The official Node client, unchanged, against a real `tidemill serve`."""

from __future__ import annotations

import pytest

from acceptance.official_client import CLIENTS, OfficialClient, node_environment
from acceptance.official_scenarios import *  # noqa: F403 - the scenarios are the tests

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def client(tmp_path_factory):
    scratch = tmp_path_factory.mktemp("node")
    environment = {**node_environment(), "HOME": str(scratch)}  # it makes a log file at home
    client = OfficialClient(["node", CLIENTS / "driver.js"], scratch / "client.log", environment)
    yield client
    client.end()
