"""A self-signed certificate, for a TLS port that was given none.

Owns two files in the data directory, `tls/cert.pem` and `tls/key.pem`; the key is readable by the broker's
user only. They are kept over restarts, so that clients which trust the certificate continue to, and made
again a month before they would expire. Made by the `openssl` command.
"""

from __future__ import annotations

import ipaddress
import os
import shutil
import socket
import subprocess
from pathlib import Path

from tidemill.core.errors import StorageError
from tidemill.log.disk import RealDisk

_DAYS = 825
_LEFT_SECONDS_MIN = 30 * 86_400
_NAMES = ("localhost",)
_ADDRESSES = ("127.0.0.1", "::1")


def own_certificate(directory: Path, host: str) -> tuple[Path, Path]:
    """Paths of a self-signed certificate for this machine and of its key; made if they are not there."""
    cert, key = directory / "tls" / "cert.pem", directory / "tls" / "key.pem"
    openssl = shutil.which("openssl")
    if openssl is None:
        raise StorageError(
            "a certificate cannot be made without the command openssl; give --tls-cert and --tls-key"
        )
    if cert.is_file() and key.is_file() and _lasts(openssl, cert):
        return cert, key
    RealDisk().make_dir(directory)  # it may not be there yet
    cert.parent.mkdir(exist_ok=True)
    fresh_cert, fresh_key = cert.with_suffix(".new"), key.with_suffix(".new")
    # The key's file exists with mode 600 before a byte of the key is in it.
    os.close(os.open(fresh_key, os.O_CREAT | os.O_WRONLY | os.O_TRUNC, 0o600))
    command = [openssl, "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    command += ["-days", str(_DAYS), "-subj", "/CN=tidemill", "-addext", f"subjectAltName={_names(host)}"]
    _run([*command, "-keyout", str(fresh_key), "-out", str(fresh_cert)])
    fresh_key.chmod(0o600)
    fresh_key.replace(key)
    fresh_cert.replace(cert)
    return cert, key


def _lasts(openssl: str, cert: Path) -> bool:
    command = [openssl, "x509", "-checkend", str(_LEFT_SECONDS_MIN), "-noout", "-in", str(cert)]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


def _names(host: str) -> str:
    names, addresses = [*_NAMES, socket.gethostname()], list(_ADDRESSES)
    try:
        address = ipaddress.ip_address(host)
        if not address.is_unspecified:
            addresses.append(str(address))
    except ValueError:
        names.append(host)
    return ",".join(
        [f"DNS:{name}" for name in dict.fromkeys(names)] + [f"IP:{a}" for a in dict.fromkeys(addresses)]
    )


def _run(command: list[str]) -> None:
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    if result.returncode:
        last = (result.stderr.strip().splitlines() or ["no reason given"])[-1]
        raise StorageError(f"openssl could not make a certificate: {last}; give --tls-cert and --tls-key")
