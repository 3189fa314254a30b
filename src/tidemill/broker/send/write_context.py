"""What the verbs that write messages need: store, topics, the send service, settings, the time.

Owns nothing but the parts it was given; cancels, transactions and retries each add their own rules.
"""

from __future__ import annotations

from collections.abc import Callable

from tidemill.broker.change.topic_admin import TopicAdmin
from tidemill.broker.send.service import SendService
from tidemill.core.config import BrokerSettings
from tidemill.store.message_store import MessageStore


class WriteContext:
    """The parts of a verb that writes messages."""

    def __init__(
        self,
        store: MessageStore,
        topics: TopicAdmin,
        sender: SendService,
        settings: BrokerSettings,
        broker_id: str,
        now_ms: Callable[[], int],
    ) -> None:
        self._store = store
        self._topics = topics
        self._sender = sender
        self._settings = settings
        self._broker_id = broker_id
        self._now_ms = now_ms
