"""The plan of a serve: everything the broker process must know, passed in one environment variable."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field

from tidemill.core.config import BrokerSettings

CONNECTIONS_MAX = 10_000
FLIGHT_PORT = 8082
PLAN_VARIABLE = "TIDEMILL_SERVE_PLAN"


@dataclass(frozen=True, slots=True)
class ServePlan:
    """Where to serve what."""

    data: str
    host: str = "127.0.0.1"
    port: int = 8081
    creates_topics: bool = False
    clock: str = "system"  # or "simulated"
    pipeline_command: tuple[str, ...] = ()  # empty: the embedded runner runs the timer
    pipeline_problem: str = ""  # why the wanted pipeline cannot run here
    settings: BrokerSettings = field(default_factory=BrokerSettings)
    auth_file: str = ""  # the permissions file; empty: authentication is off
    rate_per_client: float = 0.0  # calls a second; 0: no limit
    connections_max: int = CONNECTIONS_MAX
    tls_port: int | None = None
    tls_cert: str = ""  # with tls_key; empty: a self-signed one in the data directory
    tls_key: str = ""
    backup_dir: str = ""  # the only place for backups; empty: anywhere, if only this machine can call
    flight_port: int | None = None  # None: 8082, or a free one if that is taken; negative: no Flight
    flight_port_before: int | None = None  # where it was before the broker was started again
    broker_before: str = ""  # the id of the broker that was served before it was started again
    fault_before: str = ""  # why the broker was opened again, where it stopped after a fault
    server: str = "envoy"  # or "hypercorn"
    owner_pid: int = field(default_factory=os.getpid)  # the process that the user started, and may stop
    is_again: bool = False  # a restart: no operator is there to fix a fault meanwhile

    def as_variable(self) -> dict[str, str]:
        return {PLAN_VARIABLE: json.dumps(asdict(self))}

    @classmethod
    def from_variable(cls, environment: Mapping[str, str]) -> ServePlan:
        fields = json.loads(environment[PLAN_VARIABLE])
        return cls(
            **{
                **fields,
                "settings": BrokerSettings(**fields["settings"]),
                "pipeline_command": tuple(fields["pipeline_command"]),
            }
        )
