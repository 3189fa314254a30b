"""The certificate of a running TLS port: replaced while running, checked, and loaded by both TLS endpoints.

Owns `tls/live` in the data directory: `secret.json`, in which Envoy reads where certificate and key are, and
`turn`, whose renaming makes Envoy read both again. Neither holds a byte of the key. The files themselves are
checked every second, however they are replaced: renamed, linked or written in place. A certificate and key
that do not match, such as one half replaced, change nothing; the old certificate stays, and the log gives the
reason.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import ssl
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tidemill.core.errors import RequestError, StorageError, TidemillError
from tidemill.log.disk import RealDisk

logger = logging.getLogger(__name__)

_LOOK_EVERY_S = 1.0
_SECRET = "certificate"
_TLS_TYPES = "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3"
_Stamp = tuple[tuple[int, int, int], ...]


def check_certificate(cert: Path, key: Path) -> None:
    """Refuse a certificate and key that Envoy could not use."""
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(cert, key, password=_no_password)
    except FileNotFoundError as error:
        raise RequestError(f"cannot read the certificate {cert} or its key {key}: {error.strerror}") from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "reason", None) or str(error)
        raise StorageError(f"{cert} and {key} are not a certificate and its key: {reason}") from None


def _no_password() -> str:
    raise ValueError("the key has a password; give one without")


# -- for Envoy ------------------------------------------------------------------------------------


def secret_for_envoy(data: Path, cert: Path, key: Path) -> dict[str, Any]:
    """Envoy's configuration to find the certificate and to watch `turn`."""
    live = _live(data)
    RealDisk().make_dir(data)  # it may not be there yet
    live.mkdir(parents=True, exist_ok=True)
    files = {
        # By file name, never by content: the key stays where its owner put it.
        "certificate_chain": {"filename": str(cert)},
        "private_key": {"filename": str(key)},
        "watched_directory": {"path": str(live)},
    }
    secret = {"@type": f"{_TLS_TYPES}.Secret", "name": _SECRET, "tls_certificate": files}
    path, content = live / "secret.json", json.dumps({"resources": [secret]})
    if not path.exists() or path.read_text() != content:  # a restart writes nothing: the disk may be full
        fresh = live / "secret.new"
        fresh.write_text(content)
        fresh.replace(path)
    return {
        "name": _SECRET,
        "sds_config": {"path_config_source": {"path": str(path)}, "resource_api_version": "V3"},
    }


def turn(data: Path) -> None:
    """Make Envoy read certificate and key again."""
    fresh = _live(data) / "turn.new"
    fresh.write_text("")
    fresh.replace(_live(data) / "turn")


def _live(data: Path) -> Path:
    return (data / "tls" / "live").absolute()


# -- while it runs --------------------------------------------------------------------------------


class CertificateWatch:
    """Calls each of `acts` when another usable certificate is there. Lives on one event loop."""

    def __init__(self, cert: Path, key: Path, acts: Sequence[Callable[[], None]]) -> None:
        self._cert = cert
        self._key = key
        self._acts = acts
        self._stamp = self._looked()

    async def run(self) -> None:
        """Look every second until cancelled."""
        while True:
            await asyncio.sleep(_LOOK_EVERY_S)
            if self.is_another():
                try:
                    for act in self._acts:
                        await asyncio.to_thread(act)
                except (TidemillError, OSError) as error:
                    logger.error("the new TLS certificate is not in use yet: %s; retrying", error)
                    self._stamp = None

    def is_another(self) -> bool:
        """Whether the files have changed since the last check, and can be used."""
        stamp = self._looked()
        if stamp == self._stamp:
            return False
        self._stamp = stamp
        try:
            check_certificate(self._cert, self._key)
        except TidemillError as error:
            logger.error("the TLS certificate stays as it was: %s", error)
            return False
        logger.warning("TLS certificate read again from %s", self._cert)
        return True

    def _looked(self) -> _Stamp | None:
        try:
            found = [os.stat(path) for path in (self._cert, self._key)]
        except OSError:
            return None
        return tuple((one.st_mtime_ns, one.st_size, one.st_ino) for one in found)
