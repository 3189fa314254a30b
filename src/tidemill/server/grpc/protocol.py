"""RocketMQ's protobuf messages, taken from the package `rocketmq-python-client`.

Owns how they are loaded: without running that package's own `__init__`, which would bring a second gRPC
stack and OpenTelemetry into the broker and open a log file in the home directory. Two empty packages stand
in while the two generated modules are imported and are taken away again, so that a real client can still be
imported in the same process.

Everything here is `Any` to the type checker: the classes are made at run time.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from types import ModuleType
from typing import Any

from tidemill.core.errors import StorageError

_PACKAGE = "rocketmq"
_STUBS = "rocketmq.grpc_protocol"


def _load() -> tuple[Any, Any]:
    if _PACKAGE in sys.modules:
        return _import_both()
    spec = importlib.util.find_spec(_PACKAGE)
    if spec is None or spec.submodule_search_locations is None:
        raise StorageError(
            "the package rocketmq-python-client is missing; install tidemill with its extra `server`"
        )
    folder = next(iter(spec.submodule_search_locations))
    try:
        for name, path in ((_PACKAGE, folder), (_STUBS, f"{folder}/grpc_protocol")):
            stand_in = ModuleType(name)
            stand_in.__path__ = [path]
            sys.modules[name] = stand_in
        return _import_both()
    finally:
        for name in [n for n in sys.modules if n == _PACKAGE or n.startswith(f"{_PACKAGE}.")]:
            del sys.modules[name]


def _import_both() -> tuple[Any, Any]:
    return importlib.import_module(f"{_STUBS}.service_pb2"), importlib.import_module(
        f"{_STUBS}.definition_pb2"
    )


_loaded = _load()
service: Any = _loaded[0]
definition: Any = _loaded[1]
Code: Any = definition.Code
DecodeError: type[Exception] = importlib.import_module("google.protobuf.message").DecodeError

SERVICE = "/apache.rocketmq.v2.MessagingService/"
CLIENT_ID = b"x-mq-client-id"
NAMESPACE = b"x-mq-namespace"
