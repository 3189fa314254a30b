from tidemill.broker.broker import Broker as Broker
from tidemill.broker.embedded import open_broker as open  # noqa: A004 - the name people look for
from tidemill.client.answers import Message as Message
from tidemill.client.async_client import AsyncClient as AsyncClient
from tidemill.client.client import Client as Client
from tidemill.client.transport.retrying import Unreachable as Unreachable
from tidemill.client.worker import Worker as Worker
from tidemill.core.config import BrokerSettings as BrokerSettings
from tidemill.core.errors import BusyError as BusyError
from tidemill.core.errors import Forbidden as Forbidden
from tidemill.core.errors import RequestError as RequestError
from tidemill.core.errors import TidemillError as TidemillError
from tidemill.core.errors import Unauthorized as Unauthorized
from tidemill.core.model import CancelAnswer as CancelAnswer
from tidemill.core.model import Delivery as Delivery
from tidemill.core.model import Draft as Draft
from tidemill.core.model import Handle as Handle
from tidemill.core.model import Once as Once
from tidemill.core.model import Receipt as Receipt

__all__ = [
    "AsyncClient",
    "Broker",
    "BrokerSettings",
    "BusyError",
    "CancelAnswer",
    "Client",
    "Delivery",
    "Draft",
    "Forbidden",
    "Handle",
    "Message",
    "Once",
    "Receipt",
    "RequestError",
    "TidemillError",
    "Unauthorized",
    "Unreachable",
    "Worker",
    "open",
]
