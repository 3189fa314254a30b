"""The options of `tidemill serve` for authentication, TLS and limits."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from tidemill.cli.arguments import usage

CONNECTIONS_MAX = 10_000

AuthOption = Annotated[
    Path | None,
    typer.Option("--auth", help="Permissions file (TOML); read again on change."),
]
PORT_MAX = 65_535
TlsPortOption = Annotated[
    int | None,
    typer.Option("--tls-port", min=0, max=PORT_MAX, help="A second port with TLS; 0 takes a free one. [off]"),
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


def checked_auth(path: Path | None) -> str:
    """The permissions file's full path; refused if it cannot be used."""
    if path is None:
        return ""
    from tidemill.server.security.authority import read_permissions

    read_permissions(path)
    return str(path.absolute())


@contextmanager
def tls_fields(
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
