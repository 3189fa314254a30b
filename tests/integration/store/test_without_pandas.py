"""The broker process neither loads pandas at its start nor later, when an array is made from a list."""

from __future__ import annotations

import subprocess
import sys

_SCRIPT = """
import sys
import tidemill.broker.broker, tidemill.server.http.http_api
import tidemill.server.app, tidemill.server.flight.flight_server
assert "pandas" not in sys.modules, "something imports it at the start"
from tidemill.store.without_pandas import keep_pandas_out
keep_pandas_out()
import pyarrow as pa
assert pa.array(["a", None]).null_count == 1
assert "pandas" not in sys.modules, "pyarrow has loaded it"
import pandas
assert pa.table({"a": [1]}).to_pandas()["a"][0] == 1
"""


def test_pandas_stays_out_until_it_is_asked_for() -> None:
    result = subprocess.run([sys.executable, "-c", _SCRIPT], capture_output=True, text=True, timeout=120)
    assert result.returncode == 0, result.stderr
