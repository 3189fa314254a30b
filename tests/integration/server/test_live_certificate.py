"""A certificate that is replaced while it is in use: when it counts as another, and when it does not."""

from __future__ import annotations

import json
import shutil

import pytest

from acceptance.official_client import require_tools
from tidemill.core.errors import RequestError
from tidemill.server.security.certificate import own_certificate
from tidemill.server.security.live_certificate import (
    CertificateWatch,
    check_certificate,
    secret_for_envoy,
    turn,
)


@pytest.fixture(scope="module")
def pairs(tmp_path_factory):
    """Two certificates, each with its key."""
    require_tools("openssl")
    return [own_certificate(tmp_path_factory.mktemp("pair"), "127.0.0.1") for _ in range(2)]


@pytest.fixture
def live(pairs, tmp_path):
    """The first pair, in a place of its own."""
    live = tmp_path / "live.pem", tmp_path / "live.key"
    for source, target in zip(pairs[0], live, strict=True):
        shutil.copy(source, target)
    return live


def test_a_pair_counts_when_both_halves_are_there(pairs, live, caplog) -> None:
    (_, (new_cert, new_key)), (cert, key) = pairs, live
    watch = CertificateWatch(cert, key, ())
    assert not watch.is_another()
    cert.write_bytes(new_cert.read_bytes())  # in place, as `cp` does
    assert not watch.is_another()
    assert "stays as it was" in caplog.text
    fresh = key.with_suffix(".new")
    shutil.copy(new_key, fresh)
    fresh.replace(key)
    assert watch.is_another()
    assert not watch.is_another()
    assert new_key.read_text().splitlines()[1] not in caplog.text


def test_a_file_that_is_gone_for_a_moment_changes_nothing(pairs, live, caplog) -> None:
    cert, key = live
    watch = CertificateWatch(cert, key, ())
    cert.unlink()
    assert [watch.is_another(), watch.is_another()] == [False, False]
    assert caplog.text.count("stays as it was") == 1, "said once"
    cert.symlink_to(pairs[1][0])
    key.unlink()
    key.symlink_to(pairs[1][1])
    assert watch.is_another()
    with pytest.raises(RequestError, match="cannot read the certificate"):
        check_certificate(cert.with_name("nowhere.pem"), key)


def test_envoy_gets_the_path_of_the_key_and_never_its_content(pairs, tmp_path) -> None:
    cert, key = pairs[0]
    told = secret_for_envoy(tmp_path, cert, key)
    path = tmp_path / "tls" / "live" / "secret.json"
    assert told["sds_config"]["path_config_source"]["path"] == str(path)
    (secret,) = json.loads(path.read_text())["resources"]
    assert secret["tls_certificate"]["private_key"] == {"filename": str(key)}
    written = path.stat()
    assert secret_for_envoy(tmp_path, cert, key) == told
    assert path.stat().st_ino == written.st_ino, "a restart needs no space on the disk"
    turn(tmp_path)
    assert (path.parent / "turn").exists()


def test_a_data_directory_that_begins_with_a_certificate_is_its_makers_alone(tmp_path):
    require_tools("openssl")
    cert, key = own_certificate(tmp_path / "one", "127.0.0.1")
    secret_for_envoy(tmp_path / "two", cert, key)
    for name in ("one", "two"):
        assert (tmp_path / name).stat().st_mode & 0o077 == 0
