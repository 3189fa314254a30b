"""A `tidemill serve` that asks who you are: its permissions file, its users, its TLS port."""

from __future__ import annotations

from pathlib import Path

from acceptance.serving import Served, free_port

SECRET, TOKEN, BOSS = "shop-secret-key-1", "shop-token-1", "boss-token-1"
BLIND = "blind-token-1"
PERMISSIONS = f"""
[users.shop]
access_key = "shop-ak"
secret_key = "{SECRET}"
token = "{TOKEN}"
[[users.shop.allow]]
verbs = ["send", "receive", "cancel", "look"]
topics = ["orders", "kept"]
groups = ["workers"]

[users.neighbour]
access_key = "neighbour-ak"
secret_key = "{SECRET}"
[[users.neighbour.allow]]
verbs = ["receive"]
topics = ["orders", "kept"]
groups = ["workers"]

[users.blind]
token = "{BLIND}"
[[users.blind.allow]]
verbs = ["send", "cancel"]
topics = ["orders"]

[users.boss]
token = "{BOSS}"
[[users.boss.allow]]
verbs = ["*"]
topics = ["*"]
groups = ["*"]
"""


class Secured(Served):
    """A broker with a permissions file and a TLS port."""

    def __init__(self, directory: Path, *flags: str) -> None:
        self.permissions = directory.with_suffix(".toml")
        self.permissions.write_text(PERMISSIONS)
        self.permissions.chmod(0o600)
        self.tls_port = free_port()
        self.tls_endpoint = f"127.0.0.1:{self.tls_port}"
        self.ca = directory / "tls" / "cert.pem"
        super().__init__(directory, "--auth", str(self.permissions), "--tls-port", str(self.tls_port), *flags)
