"""Container file, compose file, systemd unit and settings file: read, compared, and their commands run.

There is no container engine here, so images are not built. Everything they name is looked up: files, flags,
ports, addresses; and the commands they start are started.
"""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml

import tidemill
from acceptance.serving import Served
from tidemill.cli.catalogue import application
from tidemill.cli.serve_config import settings_in
from tidemill.core.config import BrokerSettings, setting_names
from tidemill.server.process.supervisor import _STOP_SECONDS

_ROOT = Path(__file__).resolve().parent.parent.parent
_DEPLOY = _ROOT / "deploy"
_UNIT = _DEPLOY / "tidemill.service"
_COMPOSE: dict[str, Any] = yaml.safe_load((_DEPLOY / "compose.yaml").read_text())
_SERVICES: dict[str, Any] = _COMPOSE["services"]
_INSTALLED = "/opt/tidemill/bin/tidemill"


def _instructions() -> list[tuple[str, str]]:
    """The container file, one instruction after the other, without comments."""
    text = (_DEPLOY / "Containerfile").read_text().replace("\\\n", " ")
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("#")]
    return [(name, rest.strip()) for name, _, rest in (line.partition(" ") for line in lines)]


def _instruction(name: str) -> str:
    return [rest for found, rest in _instructions() if found == name][-1]


def _unit_command() -> list[str]:
    command = re.search(r"^ExecStart=(.*)$", _UNIT.read_text(), re.MULTILINE)
    assert command
    return shlex.split(command[1])


_COMMANDS = {
    "container": json.loads(_instruction("CMD")),
    "compose": _SERVICES["tidemill"]["command"],
    "systemd": _unit_command()[1:],
}


@pytest.mark.parametrize("where", _COMMANDS)
def test_the_command_line_takes_the_command(where: str) -> None:
    name, *arguments = [
        str(_DEPLOY / "tidemill.toml") if word.endswith("/tidemill.toml") else word
        for word in _COMMANDS[where]
    ]
    command = typer.main.get_command(application(None)).commands[name]  # type: ignore[attr-defined]
    command.make_context(name, arguments)  # raises on a flag that does not exist


@pytest.mark.parametrize("where", ["compose", "systemd"])
def test_the_command_serves(where: str, tmp_path: Path) -> None:
    _, *flags = _COMMANDS[where]
    flags[flags.index("--config") + 1] = str(_DEPLOY / "tidemill.toml")
    flags[flags.index("--backup-dir") + 1] = str(tmp_path / "backups")
    del flags[flags.index("--data") : flags.index("--data") + 2]
    served = Served(tmp_path / "data", *flags, "--pipeline", "embedded", "--flight-port", "0").start()
    with tidemill.Client(served.endpoint) as client:
        assert client.admin.backup(str(tmp_path / "backups" / "one")).pending == 0
    assert served.stop() == 0


def test_the_health_check_tells_a_served_broker_from_none(tmp_path: Path) -> None:
    words = json.loads(re.search(r"CMD (\[.*\])", _instruction("HEALTHCHECK"))[1])  # type: ignore[index]
    served = Served(tmp_path / "data", "--pipeline", "embedded", "--flight-port", "-1")
    look = [sys.executable, *[word.replace("8081", str(served.port)) for word in words[1:]]]
    assert words[0] == "python"
    assert subprocess.run(look, capture_output=True).returncode
    served.start()
    assert subprocess.run(look, capture_output=True).returncode == 0
    served.stop()


def test_the_bare_container_refuses_to_be_open_to_everybody(tmp_path: Path) -> None:
    _, *flags = [str(tmp_path) if word == "/data" else word for word in _COMMANDS["container"]]
    command = [sys.executable, "-m", "tidemill.cli.main", "serve", *flags]
    said = subprocess.run(command, capture_output=True, text=True)
    assert said.returncode == 2
    assert "--auth" in said.stderr


# -- the container file ---------------------------------------------------------------------------


def test_what_the_container_file_copies_is_there_and_not_ignored() -> None:
    allowed = re.findall(r"^!(.*)$", (_DEPLOY / "Containerfile.dockerignore").read_text(), re.MULTILINE)
    sources = [
        word
        for name, rest in _instructions()
        if name == "COPY" and not rest.startswith("--from")
        for word in rest.split()[:-1]
    ]
    assert len(sources) >= 4
    assert not [source for source in sources if not (_ROOT / source).exists()]
    assert not [source for source in sources if not any(fnmatch(source, pattern) for pattern in allowed)]


def test_the_container_runs_a_python_that_is_supported_and_no_root() -> None:
    project = tomllib.loads((_ROOT / "pyproject.toml").read_text())["project"]
    images = {rest.split()[0] for name, rest in _instructions() if name == "FROM"}
    (version,) = {re.search(r"python:(\d+\.\d+)", image)[1] for image in images}  # type: ignore[index]
    assert f"Programming Language :: Python :: {version}" in project["classifiers"]
    assert _instruction("USER") not in ("root", "0")
    assert _instruction("ENTRYPOINT") == '["tidemill"]'
    assert "tidemill" in project["scripts"]


def test_the_containers_lock_agrees_with_the_projects() -> None:
    pins = [
        set(re.findall(r"^([\w.-]+==[\w.]+)", (_ROOT / name).read_text(), re.MULTILINE))
        for name in ("deploy/requirements.lock", "requirements.lock")
    ]
    assert pins[0] <= pins[1], "run `make lock`"
    names = {pin.split("==")[0] for pin in pins[0]}
    project = tomllib.loads((_ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    wanted = [*project["dependencies"], *extras["server"], *extras["spark"]]
    assert {re.split(r"[<>=\[; ]", need)[0] for need in wanted} <= names
    assert "pytest" not in names


# -- the compose file -----------------------------------------------------------------------------


def test_what_the_compose_file_mounts_is_there() -> None:
    named = set(_COMPOSE["volumes"])
    for service in _SERVICES.values():
        for volume in service["volumes"]:
            source = volume.split(":")[0]
            assert source in named or (_DEPLOY / source).exists(), volume
    built = _SERVICES["tidemill"]["build"]
    assert (_DEPLOY / built["context"] / built["dockerfile"]).exists()


def test_the_compose_file_opens_nothing_to_other_machines() -> None:
    for service in _SERVICES.values():
        for port in service["ports"]:
            assert port.startswith("127.0.0.1:"), port


def test_images_are_pinned() -> None:
    images = [service["image"] for service in _SERVICES.values() if "image" in service]
    assert images
    assert not [image for image in images if not re.search(r":v?\d+\.\d+\.\d+$", image)]


def test_prometheus_and_grafana_find_each_other_and_the_broker() -> None:
    scraped = yaml.safe_load((_DEPLOY / "prometheus" / "prometheus.yml").read_text())["scrape_configs"][0]
    (target,) = scraped["static_configs"][0]["targets"]
    sources = yaml.safe_load((_DEPLOY / "grafana/provisioning/datasources/prometheus.yml").read_text())
    providers = yaml.safe_load((_DEPLOY / "grafana/provisioning/dashboards/tidemill.yml").read_text())
    for address in (target, sources["datasources"][0]["url"].removeprefix("http://")):
        name, port = address.split(":")
        assert any(p.split(":")[-1] == port for p in _SERVICES[name]["ports"]), address
    mounted = {volume.split(":")[1] for volume in _SERVICES["grafana"]["volumes"]}
    assert providers["providers"][0]["options"]["path"] in mounted
    home = _SERVICES["grafana"]["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"]
    assert (_DEPLOY / "grafana" / "dashboards" / Path(home).name).exists()
    exposed = set(_instruction("EXPOSE").split())
    assert {port.split(":")[-1] for port in _SERVICES["tidemill"]["ports"]} == exposed


# -- the settings file and the unit ---------------------------------------------------------------


def test_the_settings_file_holds_every_setting_with_its_default() -> None:
    assert settings_in(_DEPLOY / "tidemill.toml") == BrokerSettings()
    assert set(tomllib.loads((_DEPLOY / "tidemill.toml").read_text())) == setting_names()


@pytest.fixture
def unit(tmp_path: Path) -> Path:
    """The unit with a command that exists on this machine."""
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd-analyze is not here; apt-get install systemd")
    path = tmp_path / "tidemill.service"
    path.write_text(_UNIT.read_text().replace(_INSTALLED, sys.executable))
    return path


def test_systemd_accepts_the_unit(unit: Path) -> None:
    said = subprocess.run(["systemd-analyze", "verify", "--man=no", unit], capture_output=True, text=True)
    assert said.returncode == 0, said.stderr
    assert "tidemill.service" not in said.stderr, said.stderr


def test_systemd_finds_the_unit_well_shut(unit: Path) -> None:
    analysis = ["systemd-analyze", "security", "--no-pager", "--offline=true", "--threshold=25", unit]
    said = subprocess.run(analysis, capture_output=True, text=True)
    assert said.returncode == 0, said.stdout


def test_the_unit_may_write_where_it_says() -> None:
    states = re.search(r"^StateDirectory=(.*)$", _UNIT.read_text(), re.MULTILINE)
    assert states
    made = {f"/var/lib/{name}" for name in states[1].split()}
    command = _unit_command()
    assert made == {command[command.index(flag) + 1] for flag in ("--data", "--backup-dir")}


def test_the_unit_waits_longer_than_the_broker_needs_to_stop() -> None:
    stop = re.search(r"^TimeoutStopSec=(\d+)$", _UNIT.read_text(), re.MULTILINE)
    assert stop
    assert int(stop[1]) > _STOP_SECONDS
    assert float(_SERVICES["tidemill"]["stop_grace_period"].removesuffix("s")) > _STOP_SECONDS
