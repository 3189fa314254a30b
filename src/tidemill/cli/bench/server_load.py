"""Load on the gRPC endpoint: by the generator of `server_child.py`, or by `ghz` on request.

Both send single durable messages of 100 bytes, each with an id of its own. `ghz` makes each request from a
template, which costs as much CPU as the broker needs; on two cores it then measures half of itself.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from base64 import b64encode
from dataclasses import dataclass
from pathlib import Path

from tidemill.core.errors import StorageError

OWN_GENERATOR = "one process that sends ready-made HTTP/2 frames"
_PATIENCE_S = 120


@dataclass(frozen=True, slots=True)
class Load:
    """The result of a load generator."""

    sent: int
    took_s: float
    late_ms: list[float]  # from the planned time of each to its answer

    @property
    def per_s(self) -> float:
        return self.sent / self.took_s

    def percentile_ms(self, share: float) -> float:
        return self.late_ms[min(len(self.late_ms) - 1, int(len(self.late_ms) * share))]


def load(
    endpoint: str,
    topic: str,
    *,
    in_flight: int,
    seconds: float,
    rate: float = 0,
    delay_ms: int,
    with_ghz: bool = False,
) -> Load:
    """Send for some seconds; a rate of 0 is as fast as possible."""
    by = _by_ghz if with_ghz else _by_ourselves
    return by(endpoint, topic, in_flight, seconds, rate, delay_ms)


def _by_ourselves(
    endpoint: str, topic: str, in_flight: int, seconds: float, rate: float, delay_ms: int
) -> Load:
    numbers = [in_flight, seconds, rate, delay_ms]
    command = [sys.executable, "-m", "tidemill.cli.bench.server_child", endpoint, topic, *map(str, numbers)]
    # A terminal's Ctrl-C is for the parent, which ends the child.
    child = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        assert child.stdout is not None
        if child.stdout.readline() != "ready\n":
            raise StorageError("the load generator did not start; see above")
        said, _ = child.communicate("go\n", timeout=_PATIENCE_S)
        if child.returncode:
            raise StorageError("the load generator failed; see above")
    finally:
        child.kill()
        child.wait()
    found = json.loads(said)
    if found["bad"]:
        raise StorageError(f"{found['bad']} of the calls failed; the figures would mean nothing")
    return Load(found["good"], found["took_s"], found["late_ms"])


def _by_ghz(endpoint: str, topic: str, in_flight: int, seconds: float, rate: float, delay_ms: int) -> Load:
    request = {
        "messages": [
            {
                "topic": {"name": topic},
                "system_properties": {"message_id": "{{newUUID}}"},
                "user_properties": {"__delay_ms": str(delay_ms)},
                "body": b64encode(os.urandom(100)).decode(),
            }
        ]
    }
    with tempfile.TemporaryDirectory(prefix="tidemill-bench-") as place:
        protoset = Path(place) / "service.protoset"
        protoset.write_bytes(_protoset())
        flags = ["--insecure", "--protoset", str(protoset), "--call"]
        flags += ["apache.rocketmq.v2.MessagingService.SendMessage", "-d", json.dumps(request)]
        flags += ["-c", str(in_flight), "-z", f"{seconds}s", "--duration-stop=wait", "-O", "json"]
        flags += ["--connections", "4"] + (["--rps", str(int(rate))] if rate else [])
        said = subprocess.run(
            ["ghz", *flags, endpoint], capture_output=True, text=True, timeout=_PATIENCE_S, check=True
        )
    found = json.loads(said.stdout)
    late_ms = sorted(call["latency"] / 1e6 for call in found["details"])
    return Load(int(found["count"]), float(found["total"]) / 1e9, late_ms)


def _protoset() -> bytes:
    """The service's descriptors with their dependencies, as ghz reads them."""
    from google.protobuf.descriptor_pb2 import FileDescriptorSet  # type: ignore[import-untyped]

    from tidemill.server.grpc.protocol import service

    files = FileDescriptorSet()
    seen: set[str] = set()

    def add(descriptor: object) -> None:
        name = descriptor.name  # type: ignore[attr-defined]
        if name not in seen:
            seen.add(name)
            for dependency in descriptor.dependencies:  # type: ignore[attr-defined]
                add(dependency)
            descriptor.CopyToProto(files.file.add())  # type: ignore[attr-defined]

    add(service.DESCRIPTOR)
    return bytes(files.SerializeToString())
