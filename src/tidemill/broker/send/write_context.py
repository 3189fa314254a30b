"""What the verbs that write messages stand on, beside the sender itself: store, topics, settings, the time.

Owns nothing but the parts it was given; tables, cancels, transactions and retries each add their own rules.
"""

from __future__ import annotations

from collections.abc import Callable

from tidemill.broker.change.topic_admin import TopicAdmin
from tidemill.broker.send.sender import Sender
from tidemill.core.config import BrokerSettings
from tidemill.store.message_store import MessageStore


class WriteContext:
    """The parts of a verb whose messages take the sender's way."""

    def __init__(
        self,
        store: MessageStore,
        topics: TopicAdmin,
        sender: Sender,
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
