from tidemill.broker.broker import Broker as Broker
from tidemill.client.async_client import AsyncClient as AsyncClient
from tidemill.client.client import Client as Client
from tidemill.client.worker import Worker as Worker
from tidemill.core import errors as errors
from tidemill.core.answers import Backup as Backup
from tidemill.core.answers import BrokerStatus as BrokerStatus
from tidemill.core.answers import DamagedMessage as DamagedMessage
from tidemill.core.answers import DeadLetter as DeadLetter
from tidemill.core.answers import FoundMessage as FoundMessage
from tidemill.core.answers import GroupInfo as GroupInfo
from tidemill.core.answers import Holds as Holds
from tidemill.core.answers import Message as Message
from tidemill.core.answers import Minute as Minute
from tidemill.core.answers import Moved as Moved
from tidemill.core.answers import NackResult as NackResult
from tidemill.core.answers import PendingMessage as PendingMessage
from tidemill.core.answers import TopicInfo as TopicInfo
from tidemill.core.clock import SimulatedClock as SimulatedClock
from tidemill.core.config import BrokerSettings as BrokerSettings
from tidemill.core.errors import *
from tidemill.core.model import CancelAnswer as CancelAnswer
from tidemill.core.model import Delivery as Delivery
from tidemill.core.model import Draft as Draft
from tidemill.core.model import Handle as Handle
from tidemill.core.model import Once as Once
from tidemill.core.model import SendResult as SendResult
from tidemill.embedded.embedded_broker import EmbeddedBroker as EmbeddedBroker
from tidemill.embedded.embedded_broker import open_embedded as open  # noqa: A004 - the name people look for

__all__ = [
    "AsyncClient",
    "Backup",
    "Broker",
    "BrokerSettings",
    "BrokerStatus",
    "CancelAnswer",
    "Client",
    "DamagedMessage",
    "DeadLetter",
    "Delivery",
    "Draft",
    "EmbeddedBroker",
    "FoundMessage",
    "GroupInfo",
    "Handle",
    "Holds",
    "Message",
    "Minute",
    "Moved",
    "NackResult",
    "Once",
    "PendingMessage",
    "SendResult",
    "SimulatedClock",
    "TopicInfo",
    "Worker",
    "open",
]
__all__ += errors.__all__
