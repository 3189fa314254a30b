"""`tidemill serve`: serve a data directory over the network."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from tidemill.cli.arguments import usage
from tidemill.cli.serve_config import ConfigOption, settings_in
from tidemill.cli.serve_story import Story
from tidemill.core.config import BrokerSettings, setting_names, settings_from
from tidemill.core.errors import RequestError, StorageError
from tidemill.server.process.serve_plan import ServePlan

_CONNECTIONS_MAX = 10_000

AuthOption = Annotated[
    Path | None,
    typer.Option("--auth", help="Permissions file (TOML); read again on change."),
]
_PORT_MAX = 65_535
TlsPortOption = Annotated[
    int | None,
    typer.Option(
        "--tls-port", min=0, max=_PORT_MAX, help="A second port with TLS; 0 takes a free one. [off]"
    ),
]
TlsCertOption = Annotated[
    Path | None, typer.Option("--tls-cert", help="Certificate, PEM. [self-signed, in the data directory]")
]
TlsKeyOption = Annotated[Path | None, typer.Option("--tls-key", help="The certificate's key, PEM.")]
MaxConnectionsOption = Annotated[
    int, typer.Option("--max-connections", min=1, help="Connections at once; more are closed.")
]
RateOption = Annotated[
    float, typer.Option("--rate-per-client", min=0, help="Calls per second from one client; 0: no limit.")
]

BackupDirOption = Annotated[
    Path | None,
    typer.Option(
        "--backup-dir", help="The only directory for backups. [anywhere, if only this machine can connect]"
    ),
]
LevelsOption = Annotated[
    str | None, typer.Option(help="Delay of each level, with s m h d. [as before; first 1s 5s … 2h]")
]
PortOption = Annotated[
    int, typer.Option(min=0, max=_PORT_MAX, help="Port for gRPC and HTTP; 0 takes a free one.")
]
FlightPortOption = Annotated[
    int | None,
    typer.Option(min=-1, max=_PORT_MAX, help="Port for Arrow Flight; 0 takes a free one, -1 is none. [8082]"),
]
ServerOption = Annotated[
    str, typer.Option("--server", help="What serves the port: envoy, hypercorn, or auto: Envoy if it runs.")
]
WheelSlotsOption = Annotated[int | None, typer.Option(help="Slots of the timing wheel. [1209600]")]
RollWindowOption = Annotated[
    str | None, typer.Option(help="How far ahead the wheel reaches. [172800 ticks: 2d at 1000ms]")
]
DuePerTickOption = Annotated[
    int | None, typer.Option(help="Messages of one topic that may fall due in one tick; 0: no limit. [0]")
]
TimerStoreOption = Annotated[str | None, typer.Option(help="The timer store: wheel or rocksdb. [wheel]")]


def serve(
    context: typer.Context,
    data: Annotated[Path, typer.Option(help="Data directory; created if missing.")],
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: PortOption = 8081,
    flight_port: FlightPortOption = None,
    insecure: Annotated[
        bool, typer.Option("--insecure", help="Allow an address reachable from other machines.")
    ] = False,
    auto_create: Annotated[
        bool, typer.Option("--auto-create", help="Create a topic when a gRPC client asks for it.")
    ] = False,
    pipeline: Annotated[str, typer.Option(help="What runs the timer: spark or embedded.")] = "spark",
    spark_master: Annotated[str, typer.Option(help="Where Spark runs.")] = "local[*]",
    lead: Annotated[str | None, typer.Option(help="How far the timer works ahead. [30s]")] = None,
    tick: Annotated[str | None, typer.Option(help="Width of a wheel slot. [1000ms]")] = None,
    shards: Annotated[int | None, typer.Option(help="Shards of the timer. [2]")] = None,
    wheel_slots: WheelSlotsOption = None,
    roll_window: RollWindowOption = None,
    timer_store: TimerStoreOption = None,
    durability: Annotated[str | None, typer.Option(help="sync or async. [sync]")] = None,
    commits_in_flight: Annotated[int | None, typer.Option(help="Commits that may overlap. [4]")] = None,
    retention: Annotated[str | None, typer.Option(help="How long messages are kept. [3d]")] = None,
    max_delay: Annotated[str | None, typer.Option(help="The longest delay accepted. [3650d]")] = None,
    due_per_tick_max: DuePerTickOption = None,
    levels: LevelsOption = None,
    clock: Annotated[str, typer.Option(help="system or simulated.")] = "system",
    auth: AuthOption = None,
    tls_port: TlsPortOption = None,
    tls_cert: TlsCertOption = None,
    tls_key: TlsKeyOption = None,
    max_connections: MaxConnectionsOption = _CONNECTIONS_MAX,
    rate_per_client: RateOption = 0.0,
    backup_dir: BackupDirOption = None,
    server: ServerOption = "auto",
    config: ConfigOption = None,
) -> int:
    """Serve a data directory over gRPC and HTTP until stopped."""
    _check(data, pipeline, clock, server)
    settings = _settings(config, context.params)
    from tidemill.server.process.reserved_port import (  # other commands start faster without
        hold_port,
        require_guarded,
    )

    require_guarded(host, is_guarded=insecure or auth is not None)
    timer = _pipeline_command(data, settings, spark_master) if pipeline == "spark" else ((), "")
    security: dict[str, Any] = {
        "auth_file": _checked_auth(auth),
        "flight_port": flight_port,
        "rate_per_client": rate_per_client,
        "backup_dir": str(backup_dir.absolute()) if backup_dir is not None else "",
        "connections_max": max_connections,
        "server": _server(server),
    }
    plan = ServePlan(str(data), host, port, auto_create, clock, *timer, settings, **security)
    with hold_port(host, port) as held, _tls_fields(data, host, tls_port, tls_cert, tls_key) as tls:
        return asyncio.run(_run(replace(plan, port=held, **tls)))


def _checked_auth(path: Path | None) -> str:
    """The permissions file's full path; refused if it cannot be used."""
    if path is None:
        return ""
    from tidemill.server.security.authority import read_permissions

    read_permissions(path)
    return str(path.absolute())


@contextmanager
def _tls_fields(
    data: Path, host: str, port: int | None, cert: Path | None, key: Path | None
) -> Iterator[dict[str, Any]]:
    """The TLS fields of the plan, with the port bound and the certificate in place."""
    if (cert is None) != (key is None):
        raise usage("--tls-cert and --tls-key go together")
    if port is None:
        if cert is not None:
            raise usage("--tls-cert needs --tls-port")
        yield {}
        return
    from tidemill.server.process.reserved_port import hold_port
    from tidemill.server.security.certificate import own_certificate
    from tidemill.server.security.live_certificate import check_certificate

    with hold_port(host, port, "--tls-port") as held:
        if cert is None or key is None:
            cert, key = own_certificate(data, host)
        check_certificate(cert, key)
        yield {"tls_port": held, "tls_cert": str(cert.absolute()), "tls_key": str(key.absolute())}


def _settings(config: Path | None, flags: dict[str, Any]) -> BrokerSettings:
    """Settings of the file, with those of the flags that are settings and were given."""
    names = setting_names()
    given = {name: value for name, value in flags.items() if name in names and value is not None}
    settings = settings_from(given, settings_in(config))
    if settings.timer_store == "rocksdb":
        from tidemill.log.sorted_keys import require_rocksdict

        require_rocksdict()
    return settings


def _check(data: Path, pipeline: str, clock: str, server: str) -> None:
    """Refuse wrong arguments before a port is bound or a certificate is created."""
    from tidemill.broker.identity import require_usable
    from tidemill.log.disk import RealDisk

    if pipeline not in ("spark", "embedded"):
        raise RequestError(f"pipeline {pipeline!r} is unknown; use spark or embedded")
    if clock not in ("system", "simulated"):
        raise RequestError(f"clock {clock!r} is unknown; use system or simulated")
    if server not in ("auto", "envoy", "hypercorn"):
        raise RequestError(f"server {server!r} is unknown; use auto, envoy or hypercorn")
    require_usable(RealDisk(), data)


def _server(wanted: str) -> str:
    """The server to use: Hypercorn, with a line that says why, where Envoy cannot run."""
    from tidemill.server.process.shared_python import missing_package

    if wanted == "hypercorn" or (package := missing_package()) is None:
        return "envoy" if wanted == "auto" else wanted
    problem = f"Envoy needs Python's shared library; install it (apt-get install {package})"
    if wanted == "envoy":
        raise StorageError(f"{problem}, or use --server hypercorn")
    print(f"tidemill: {problem}. Continuing with hypercorn, which is slower.", file=sys.stderr)
    return "hypercorn"


def _pipeline_command(data: Path, settings: BrokerSettings, master: str) -> tuple[tuple[str, ...], str]:
    """The command of Spark; empty, with a warning and the reason, on a machine that cannot run it."""
    from tidemill.server.process.pipeline_command import check_master, pipeline_command, why_not_spark

    check_master(master)
    if problem := why_not_spark():
        print(f"tidemill: {problem}. Continuing with the embedded runner.", file=sys.stderr)
        return (), problem
    return tuple(pipeline_command(sys.executable, data, settings, master)), ""


async def _run(plan: ServePlan) -> int:
    from tidemill.server.process.supervisor import Supervisor

    try:
        with Story() as story:
            return await Supervisor(plan, story.tell).run()
    finally:
        _ignore_signals()


def _ignore_signals() -> None:
    """From here on another signal would only change the exit code."""
    loop, numbers = asyncio.get_running_loop(), (signal.SIGTERM, signal.SIGINT)
    signal.pthread_sigmask(signal.SIG_BLOCK, numbers)
    for number in numbers:
        loop.remove_signal_handler(number)  # else the loop restores the default when it closes
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, numbers)
