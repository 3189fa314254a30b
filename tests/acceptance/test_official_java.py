"""The official Java client, unchanged, against a real `tidemill serve`."""

from __future__ import annotations

import pytest

from acceptance.official_client import OfficialClient, java_classpath
from acceptance.official_scenarios import *  # noqa: F403 - the scenarios are the tests

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def client(tmp_path_factory):
    scratch = tmp_path_factory.mktemp("java")
    logs = f"-Drocketmq.log.root={scratch}"  # or the client writes into the home directory
    client = OfficialClient(["java", logs, "-cp", java_classpath(), "Driver"], scratch / "client.log")
    yield client
    client.end()
