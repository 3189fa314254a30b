"""An official client of another language, driven through a pipe: one line a request, one line an answer.

A request is `id TAB operation TAB fields`, an answer `ok TAB id TAB record …` or `error TAB id TAB fields`, a
delivery to a push listener `event TAB name TAB record`. Fields and records are URL-encoded, so that every
language can read them without a library.
"""

from __future__ import annotations

import hashlib
import itertools
import os
import shutil
import subprocess
import threading
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import parse_qsl, urlencode

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
CLIENTS = Path(__file__).resolve().parent / "clients"
EXAMPLES = ROOT / "examples"
CACHE = ROOT / ".cache"
_ANSWER_SECONDS = 60.0
_BUILD_SECONDS = 240.0

Fields = dict[str, str]


class ClientFault(Exception):
    """What the official client raised."""


@dataclass(frozen=True, slots=True)
class Seen:
    """A message as the client showed it."""

    fields: Fields

    @property
    def body(self) -> str:
        return self.fields["body"]

    @property
    def id(self) -> str:
        return self.fields["message_id"]

    @property
    def attempt(self) -> int:
        return int(self.fields["attempt"])

    @property
    def receipt(self) -> str:
        return self.fields["receipt"]

    @property
    def at_ms(self) -> int:
        return int(self.fields["at_ms"])

    @property
    def properties(self) -> Fields:
        return {name[2:]: value for name, value in self.fields.items() if name.startswith("p.")}


def _fields(text: str) -> Fields:
    return dict(parse_qsl(text, keep_blank_values=True))


class OfficialClient:
    """A process with official clients in it. Requests may overlap."""

    def __init__(self, command: Sequence[str | Path], log: Path, environment: Fields | None = None) -> None:
        self.log = log
        self.roots = log.with_name("roots.pem")  # to trust for TLS (Java trusts every certificate)
        trust = {"GRPC_DEFAULT_SSL_ROOTS_FILE_PATH": str(self.roots)}
        with log.open("wb") as errors:
            self._process = subprocess.Popen(
                list(map(str, command)),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                env={**os.environ, **trust, **(environment or {})},
            )
        self._ids = itertools.count()
        self._names = itertools.count()
        self._waiting: dict[str, Future[list[Fields]]] = {}
        self._seen: dict[str, list[Seen]] = {}
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    # -- the pipe ---------------------------------------------------------------------------------

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            kind, name, *records = line.rstrip("\n").split("\t")
            if kind == "event":
                self._seen.setdefault(name, []).extend(Seen(_fields(record)) for record in records)
            elif kind == "ok":
                self._waiting.pop(name).set_result([_fields(record) for record in records if record])
            elif kind == "error":
                self._waiting.pop(name).set_exception(ClientFault(_fields(records[0])["text"]))
        for waiting in list(self._waiting.values()):
            waiting.set_exception(ClientFault(f"the client ended: {self.log.read_text()[-2000:]}"))

    def begin(self, operation: str, **fields: object) -> Future[list[Fields]]:
        """Ask for something and do not wait for the answer."""
        assert self._process.stdin is not None
        number = str(next(self._ids))
        answer = self._waiting[number] = Future()
        self._process.stdin.write(f"{number}\t{operation}\t{urlencode(fields)}\n")
        self._process.stdin.flush()
        return answer

    def ask(self, operation: str, **fields: object) -> list[Fields]:
        return self.begin(operation, **fields).result(_ANSWER_SECONDS)

    def end(self) -> None:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.kill()
        self._process.wait()
        self._reader.join()
        self._process.stdin.close()
        self._process.stdout.close()

    # -- what a test says -------------------------------------------------------------------------

    def producer(self, endpoint: str, topic: str, checker: str = "", **keys: str) -> str:
        name = f"producer-{next(self._names)}"
        self.ask("producer", name=name, endpoint=endpoint, topic=topic, checker=checker, **keys)
        return name

    def simple(
        self,
        endpoint: str,
        topic: str,
        group: str = "workers",
        *,
        tags: str = "*",
        await_ms: int = 10_000,
        **keys: str,
    ) -> str:
        name = f"simple-{next(self._names)}"
        fields = {"name": name, "endpoint": endpoint, "topic": topic, "group": group, "tags": tags, **keys}
        self.ask("simple", **fields, await_ms=await_ms)
        return name

    def push(self, endpoint: str, topic: str, group: str, *, failures: int = 0, **keys: str) -> str:
        name = f"push-{next(self._names)}"
        fields = {"name": name, "endpoint": endpoint, "topic": topic, "group": group, **keys}
        self.ask("push", **fields, failures=failures)
        return name

    def seen(self, push: str) -> list[Seen]:
        """What a push listener was called with so far."""
        return list(self._seen.get(push, ()))

    def send(self, producer: str, topic: str, body: str, **fields: object) -> Fields:
        (receipt,) = self.ask("send", name=producer, topic=topic, body=body, **fields)
        return receipt

    def receive(self, consumer: str, count: int = 1, invisible_ms: int = 30_000) -> list[Seen]:
        """Exactly `count` messages; a poll may bring fewer."""
        found: list[Seen] = []
        while len(found) < count:
            polled = self.poll(consumer, invisible_ms=invisible_ms)
            assert polled, f"only {len(found)} of {count} messages came"
            found += polled
        assert len(found) == count
        return found

    def poll(self, consumer: str, *, invisible_ms: int = 30_000) -> list[Seen]:
        """One receive, whatever it brings."""
        return list(map(Seen, self.ask("receive", name=consumer, count=32, invisible_ms=invisible_ms)))


# -- building -------------------------------------------------------------------------------------


def require_tools(*names: str) -> None:
    """Skip where a tool is missing, and say which."""
    missing = [name for name in names if shutil.which(name) is None]
    if missing:
        pytest.skip(f"{' and '.join(missing)} not on this machine")


def built(name: str, sources: Sequence[Path], commands: Sequence[Sequence[str | Path]]) -> Path:
    """A directory in the cache with what the commands make there; made again when a source has changed."""
    content = b"".join(source.read_bytes() for source in sources)
    directory = CACHE / name / hashlib.sha256(content).hexdigest()[:16]
    if (directory / ".done").exists():
        return directory
    shutil.rmtree(CACHE / name, ignore_errors=True)
    directory.mkdir(parents=True)
    for source in sources:
        shutil.copy(source, directory)
    for command in commands:
        made = subprocess.run(
            list(map(str, command)),
            cwd=directory,
            capture_output=True,
            text=True,
            timeout=_BUILD_SECONDS,
            check=False,
        )
        assert made.returncode == 0, made.stdout + made.stderr
    (directory / ".done").touch()
    return directory


def node_environment() -> Fields:
    """The environment in which Node finds the official client."""
    require_tools("node", "npm")
    packages = [EXAMPLES / "node" / "package.json", EXAMPLES / "node" / "package-lock.json"]
    directory = built("official-node", packages, [["npm", "ci", "--ignore-scripts"]])
    return {"NODE_PATH": str(directory / "node_modules")}


def java_classpath() -> str:
    """The official client, our driver and the example, compiled."""
    require_tools("java", "javac", "mvn")
    example = EXAMPLES / "java" / "src" / "main" / "java" / "OrderTimeout.java"
    commands = [
        ["mvn", "-q", "-B", "dependency:copy-dependencies", "-DoutputDirectory=lib"],
        ["javac", "-cp", "lib/*", "-d", "classes", "Driver.java", "OrderTimeout.java"],
    ]
    sources = [EXAMPLES / "java" / "pom.xml", CLIENTS / "Driver.java", example]
    directory = built("official-java", sources, commands)
    return f"{directory / 'classes'}:{directory / 'lib'}/*"
