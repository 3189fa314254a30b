"""RocketMQ's MessagingService: decodes each call, dispatches it, encodes the answer.

Owns the list of methods and the handling of errors: one raised on purpose becomes the answer's status, any
other is logged and answered as an internal error. This is the only module of the endpoint that catches every
exception. Rules are the broker's; how producers and consumers are served is in `producing.py` and
`consuming.py`.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import Counter
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

from tidemill.broker.broker import Broker
from tidemill.broker.send.admission import GROUP_TOPIC_PREFIXES
from tidemill.core.errors import RequestError, TidemillError, UnknownTopicError
from tidemill.core.limits import FRAME_BYTES_MAX, KIB
from tidemill.server.grpc.check_backs import CheckBacks
from tidemill.server.grpc.consuming import Consuming
from tidemill.server.grpc.conversion import ACCEPTED_TYPES, fill_namespace, resource_name
from tidemill.server.grpc.framing import Call, GrpcError, GrpcService, Status, Stream, Streaming, Unary
from tidemill.server.grpc.leases import Leases
from tidemill.server.grpc.producing import Producing
from tidemill.server.grpc.protocol import CLIENT_ID, NAMESPACE, SERVICE, DecodeError, definition, service
from tidemill.server.grpc.status_codes import INTERNAL, OK, status_of
from tidemill.server.grpc.telemetry import Session, Sessions
from tidemill.server.security.caller import RECEIVE, SEND, caller, own, require, require_any
from tidemill.store.topics import Topic

logger = logging.getLogger(__name__)

MESSAGE_BYTES_MAX = FRAME_BYTES_MAX
# A stream carries settings and polls: thousands of topics with their filters fit into this.
STREAM_MESSAGE_BYTES_MAX = 256 * KIB
_WORKERS = 8
_LEASES_EVERY_S = 5.0
_TRANSACTIONS_EVERY_S = 1.0
# A client sends its settings as soon as the stream is open; a silent one only holds a slot.
_FIRST_MESSAGE_SECONDS = 60.0
_UNREAD = "stream closed: client is not reading, or other streams hold too many unread bytes; retry later"
_BROKER_NAME = "tidemill"
_AGNOSTIC_QUEUE = -1

Method = Callable[[Any, Call], Awaitable[Any]]  # returns the response, or its bytes


class Gateway:
    """The service on one broker. Made on the event loop that serves it."""

    def __init__(self, broker: Broker, *, creates_topics: bool = False) -> None:
        self._broker = broker
        self._creates_topics = creates_topics
        self._executor = ThreadPoolExecutor(_WORKERS, thread_name_prefix="tidemill-grpc")
        self._leases = Leases()
        self.producing = Producing(broker, self._executor, creates_topics=creates_topics)
        self.consuming = Consuming(broker, self._executor, self._leases)
        self.sessions = Sessions(broker.settings)
        check_backs = CheckBacks(broker, self.sessions, self.producing.owners, self._call)
        self.calls_under_way = 0
        self.call_counts: Counter[str] = Counter()  # by method, since the start
        self._is_draining = False
        self._is_idle = asyncio.Event()
        self._tasks = [
            asyncio.create_task(self._every(_LEASES_EVERY_S, self.consuming.renew_leases)),
            asyncio.create_task(self._every(_TRANSACTIONS_EVERY_S, check_backs.look)),
        ]
        self.service = GrpcService(
            self._unary_methods(), self._streaming_methods(), MESSAGE_BYTES_MAX, STREAM_MESSAGE_BYTES_MAX
        )

    def _unary_methods(self) -> dict[str, Unary]:
        methods: dict[str, Method] = {
            "QueryRoute": self._query_route,
            "Heartbeat": self._heartbeat,
            "SendMessage": self.producing.send,
            "RecallMessage": self.producing.recall,
            "EndTransaction": self.producing.end_transaction,
            "QueryAssignment": self._query_assignment,
            "AckMessage": self.consuming.ack,
            "ChangeInvisibleDuration": self.consuming.change_invisibility,
            "ForwardMessageToDeadLetterQueue": self.consuming.forward,
            "NotifyClientTermination": self._notify_client_termination,
        }
        return {SERVICE + name: self._unary(name, method) for name, method in methods.items()}

    def _streaming_methods(self) -> dict[str, Streaming]:
        return {SERVICE + "ReceiveMessage": self._receive, SERVICE + "Telemetry": self._telemetry}

    # -- every call -------------------------------------------------------------------------------

    def _unary(self, name: str, method: Method) -> Unary:
        decode = getattr(service, f"{name}Request").FromString
        response_class = getattr(service, f"{name}Response")

        async def serve(data: bytes, call: Call) -> bytes:
            self._require_open()
            self._enter(name)
            try:
                response = await method(_decoded(decode, data, call), call)
            except TidemillError as error:
                response = response_class(status=status_of(error))
            except GrpcError:
                raise
            except Exception:
                logger.exception("%s failed", name)
                response = response_class(status=INTERNAL)
            finally:
                self._leave()
            answer: bytes = response if isinstance(response, bytes) else response.SerializeToString()
            return answer

        return serve

    def _require_open(self) -> None:
        if self._is_draining:
            raise GrpcError(Status.UNAVAILABLE, "the broker is stopping")

    def _enter(self, method: str) -> None:
        self.call_counts[method] += 1
        self.calls_under_way += 1

    def _leave(self) -> None:
        self.calls_under_way -= 1
        if self._is_draining and not self.calls_under_way:
            self._is_idle.set()

    async def _receive(self, stream: Stream, call: Call) -> None:
        self._require_open()
        self._enter("ReceiveMessage")
        try:
            request = _decoded(service.ReceiveMessageRequest.FromString, await stream.read() or b"", call)
            topic_name = resource_name(request.message_queue.topic)
            require(RECEIVE, topic=topic_name, group=resource_name(request.group))
            if self._creates_topics:
                await self._topic(topic_name)
            await self.consuming.receive(request, stream, call)
        except TidemillError as error:
            await stream.write([service.ReceiveMessageResponse(status=status_of(error)).SerializeToString()])
        except (GrpcError, OSError):
            raise
        except Exception:
            logger.exception("ReceiveMessage failed")
            await stream.write([service.ReceiveMessageResponse(status=INTERNAL).SerializeToString()])
        finally:
            self._leave()

    async def _call(self, verb: Any, *arguments: Any, **named: Any) -> Any:
        return await asyncio.get_running_loop().run_in_executor(
            self._executor, partial(verb, *arguments, **named)
        )

    # -- where to go ------------------------------------------------------------------------------

    async def _topic(self, name: str) -> Topic:
        topic = self._broker.store.topics.named(name)
        if topic is not None:
            return topic
        if name.startswith(GROUP_TOPIC_PREFIXES):
            raise UnknownTopicError(
                f"no topic {name!r}: the broker makes it with the group's first message there"
            )
        if not self._creates_topics:
            raise UnknownTopicError(
                f"No topic route info in name server for the topic: {name}; create it with "
                f"`tidemill topics create {name}`, or serve with --auto-create"
            )
        made: Topic = await self._call(self._broker.topics.create, name)
        return made

    async def _query_route(self, request: Any, call: Call) -> Any:
        require_any(resource_name(request.topic))
        topic = await self._topic(resource_name(request.topic))
        response = service.QueryRouteResponse(status=OK)
        for queue_id in range(topic.queue_count):
            self._fill_queue(response.message_queues.add(), request, call, topic, queue_id)
        return response

    async def _query_assignment(self, request: Any, call: Call) -> Any:
        topic_name, group_name = resource_name(request.topic), resource_name(request.group)
        require(RECEIVE, topic=topic_name, group=group_name)
        topic = await self._topic(topic_name)
        group = await self._call(self._broker.receiver.group, group_name)
        # Every poll is served from all queues, so one is enough; a FIFO consumer works through the messages
        # of one assignment one after the other, so it gets as many as there are queues.
        queue_ids = range(topic.queue_count) if group.is_fifo else [_AGNOSTIC_QUEUE]
        response = service.QueryAssignmentResponse(status=OK)
        for queue_id in queue_ids:
            self._fill_queue(response.assignments.add().message_queue, request, call, topic, queue_id)
        return response

    def _fill_queue(self, queue: Any, request: Any, call: Call, topic: Topic, queue_id: int) -> None:
        queue.topic.CopyFrom(request.topic)
        queue.id = queue_id
        queue.permission = definition.Permission.READ_WRITE
        queue.broker.name = _BROKER_NAME
        queue.broker.id = 0  # anything else is taken for a replica
        # The address the client itself uses: right behind any port mapping, and one connection is enough.
        queue.broker.endpoints.CopyFrom(request.endpoints)
        if not request.endpoints.addresses:
            host, _, port = call.header(b"host").rpartition(":")
            queue.broker.endpoints.addresses.add(host=host, port=int(port) if port.isdigit() else 0)
        if queue.broker.endpoints.scheme == definition.AddressScheme.ADDRESS_SCHEME_UNSPECIFIED:
            queue.broker.endpoints.scheme = definition.AddressScheme.DOMAIN_NAME
        queue.accept_message_types.extend(ACCEPTED_TYPES[topic.type])

    # -- who is there -----------------------------------------------------------------------------

    async def _heartbeat(self, _: Any, call: Call) -> Any:
        self._leases.seen(own(call.header(CLIENT_ID)), self._broker.clock.boot_ms())
        return service.HeartbeatResponse(status=OK)

    async def _notify_client_termination(self, _: Any, call: Call) -> Any:
        await self.consuming.forget_client(own(call.header(CLIENT_ID)))
        return service.NotifyClientTerminationResponse(status=OK)

    async def _telemetry(self, stream: Stream, call: Call) -> None:
        self._require_open()
        self.call_counts["Telemetry"] += 1
        session = self.sessions.open(own(call.header(CLIENT_ID)), caller(), call.header(NAMESPACE))
        writing: asyncio.Task[None] | None = None
        try:
            async with asyncio.timeout(None) as patience:
                await stream.probe()  # sends the headers: some clients wait for them before sending
                writing = asyncio.create_task(session.write_out(stream, patience))
                await self._listen(session, stream, call)
        except TimeoutError:
            raise GrpcError(Status.RESOURCE_EXHAUSTED, _UNREAD) from None
        finally:
            if writing is not None:
                writing.cancel()
                with contextlib.suppress(asyncio.CancelledError, OSError):
                    await writing
            self.sessions.close(session)

    async def _listen(self, session: Session, stream: Stream, call: Call) -> None:
        data = await _first_message(stream)
        while data is not None:
            command = _decoded(service.TelemetryCommand.FromString, data, call)
            if command.HasField("settings"):
                answer = await self._settings(session, command.settings)
                if not session.say(answer):
                    raise GrpcError(Status.RESOURCE_EXHAUSTED, _UNREAD)
                if not answer.HasField("settings"):
                    # Some clients wait for their settings for as long as the stream is there.
                    await session.outbox.join()
                    raise GrpcError(Status.INVALID_ARGUMENT, answer.status.message)
            data = await stream.read()

    async def _settings(self, session: Session, asked: Any) -> Any:
        self._require_open()  # the stream may have begun before the broker was asked to stop
        if not asked.HasField("publishing") and not asked.HasField("subscription"):
            raise GrpcError(Status.INVALID_ARGUMENT, "settings are either for publishing or a subscription")
        group = None
        try:
            for topic in asked.publishing.topics:
                require(SEND, topic=resource_name(topic))
            if asked.HasField("subscription"):
                name = resource_name(asked.subscription.group)
                require(RECEIVE, group=name)
                group = await self._call(self._broker.receiver.group, name)
        except RequestError as error:
            return service.TelemetryCommand(status=status_of(error))
        return self.sessions.settings_for(session, asked, group)

    # -- background tasks -------------------------------------------------------------------------

    async def _every(self, seconds: float, task: Callable[[], Awaitable[None]]) -> None:
        while True:
            await asyncio.sleep(seconds)
            try:
                await task()
            except Exception:
                logger.exception("a background task of the gRPC server failed; retrying")

    # -- the end ----------------------------------------------------------------------------------

    async def drain(self, timeout_s: float) -> None:
        """Take no more calls, let waiting polls go, and wait until those under way are answered."""
        self._is_draining = True
        for task in self._tasks:
            task.cancel()
        self.consuming.polls.close()
        if self.calls_under_way:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(timeout_s):
                    await self._is_idle.wait()
        self.producing.close()
        self._executor.shutdown()


async def _first_message(stream: Stream) -> bytes | None:
    try:
        async with asyncio.timeout(_FIRST_MESSAGE_SECONDS):
            return await stream.read()
    except TimeoutError:
        raise GrpcError(
            Status.DEADLINE_EXCEEDED, f"no settings received within {_FIRST_MESSAGE_SECONDS:g} seconds"
        ) from None


def _decoded(decode: Callable[[bytes], Any], data: bytes, call: Call) -> Any:
    try:
        request = decode(data)
    except DecodeError as error:
        raise GrpcError(Status.INVALID_ARGUMENT, f"the request cannot be read: {error}") from error
    if namespace := call.header(NAMESPACE):
        fill_namespace(request, namespace)
    return request
