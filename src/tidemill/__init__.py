"""Tidemill keeps messages until their time, then puts each into its topic: once, never early.

import tidemill

with tidemill.open("data") as broker:
    broker.send([tidemill.Draft("orders", b"close order 17", delay_ms=30 * 60_000)])
"""

from __future__ import annotations

from tidemill.broker.broker import Broker
from tidemill.broker.opening import open_broker as open  # noqa: A004 - the name people look for
from tidemill.core.config import BrokerSettings
from tidemill.core.model import CancelAnswer, Delivery, Draft, Handle, Once, Receipt

__all__ = [
    "Broker",
    "BrokerSettings",
    "CancelAnswer",
    "Delivery",
    "Draft",
    "Handle",
    "Once",
    "Receipt",
    "open",
]
