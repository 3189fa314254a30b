"""Tidemill keeps messages until their time, then puts each into its topic: once, never early.

import tidemill

with tidemill.open("data") as broker:
    broker.send("orders", b"close order 17", delay="30m")

with tidemill.Client("127.0.0.1:8081") as client:
    client.send("orders", b"close order 17", delay="30m")

Names are imported when they are first used: a client needs neither NumPy nor the broker.
"""

from __future__ import annotations

from tidemill.core import errors
from tidemill.core.clock import SimulatedClock
from tidemill.core.config import BrokerSettings
from tidemill.core.errors import *
from tidemill.core.lazy import lazy_dir, lazy_names
from tidemill.core.model import CancelAnswer, Delivery, Draft, Handle, Once, SendResult

_ANSWERS = (
    "Backup",
    "BrokerStatus",
    "DamagedMessage",
    "DeadLetter",
    "FoundMessage",
    "GroupInfo",
    "Holds",
    "Message",
    "Minute",
    "Moved",
    "NackResult",
    "PendingMessage",
    "TopicInfo",
)

__getattr__ = lazy_names(
    __name__,
    {
        "AsyncClient": "tidemill.client.async_client:AsyncClient",
        "Broker": "tidemill.broker.broker:Broker",
        "Client": "tidemill.client.client:Client",
        "EmbeddedBroker": "tidemill.embedded.embedded_broker:EmbeddedBroker",
        **{name: f"tidemill.core.answers:{name}" for name in _ANSWERS},
        "Worker": "tidemill.client.worker:Worker",
        "open": "tidemill.embedded.embedded_broker:open_embedded",
    },
)

__all__ = [
    "AsyncClient",
    "Broker",
    "BrokerSettings",
    "CancelAnswer",
    "Client",
    "Delivery",
    "Draft",
    "EmbeddedBroker",
    "Handle",
    "Once",
    "SendResult",
    "SimulatedClock",
    "Worker",
    "open",
    *_ANSWERS,
    *errors.__all__,
]

__dir__ = lazy_dir(__name__, __all__)
