"""One process of the gRPC load generator: raw grpcio calls of SendMessage, so many in flight, perhaps paced.

Run as `python -m tidemill.cli.bench.door_child ENDPOINT TOPIC IN_FLIGHT SECONDS RATE DELAY_MS`; it prints a
line when it is ready, waits for one on standard input, and prints a JSON object at the end. A RATE of 0 is as
fast as it goes. Requests are made beforehand; each message has an id of its own and 100 bytes.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from typing import Any

import grpc  # type: ignore[import-untyped]

from tidemill.core.clock import stopwatch_s
from tidemill.server.protocol import SERVICE, Code, definition, service

_PER_SECOND_MAX = 12_000
_PATIENCE_S = 30.0


class Generator:
    """Sends and counts. One thread sends; answers come in a thread of gRPC's."""

    def __init__(self, channel: grpc.Channel, in_flight: int) -> None:
        self._method = channel.unary_unary(SERVICE + "SendMessage")
        self._in_flight = in_flight
        self._room = threading.Semaphore(in_flight)
        self.late_s: list[float] = []
        self.good = self.bad = 0

    def run(self, requests: list[bytes], seconds: float, rate: float) -> float:
        """Send until the time is over; returns how long it took with the last answer."""
        begun_s = stopwatch_s()
        pause = threading.Event()  # never set
        for index, request in enumerate(requests):
            now_s = stopwatch_s()
            due_s = begun_s + index / rate if rate else now_s
            if max(now_s, due_s) > begun_s + seconds:
                break
            if due_s > now_s:
                pause.wait(due_s - now_s)
            self._room.acquire()
            # Counted from when it should have gone: waiting for room is part of what a sender sees.
            call = self._method.future(request, timeout=_PATIENCE_S)
            call.add_done_callback(lambda done, due_s=due_s if rate else now_s: self._answered(done, due_s))
        for _ in range(self._in_flight):
            self._room.acquire()
        return stopwatch_s() - begun_s

    def _answered(self, call: Any, due_s: float) -> None:
        self.late_s.append(stopwatch_s() - due_s)
        try:
            answer = service.SendMessageResponse.FromString(call.result())
            is_good = answer.status.code == Code.OK and len(answer.entries) == 1
        except grpc.RpcError:
            is_good = False
        self.good += is_good
        self.bad += not is_good
        self._room.release()


def requests_of(topic: str, count: int, delay_ms: int) -> list[bytes]:
    """Serialised requests, each with one message."""
    prefix, body = os.urandom(8).hex(), os.urandom(100)
    made = []
    for number in range(count):
        message = definition.Message(body=body)
        message.topic.name = topic
        message.system_properties.message_id = f"{prefix}{number:08x}"
        message.user_properties["__delay_ms"] = str(delay_ms)
        made.append(service.SendMessageRequest(messages=[message]).SerializeToString())
    return made


def main(endpoint: str, topic: str, in_flight: int, seconds: float, rate: float, delay_ms: int) -> None:
    requests = requests_of(topic, int(seconds * (rate or _PER_SECOND_MAX)) + 1, delay_ms)
    with grpc.insecure_channel(endpoint) as channel:
        grpc.channel_ready_future(channel).result(_PATIENCE_S)
        generator = Generator(channel, in_flight)
        print("ready", flush=True)
        sys.stdin.readline()
        took_s = generator.run(requests, seconds, rate)
    late_ms = sorted(round(late_s * 1000, 3) for late_s in generator.late_s)
    print(
        json.dumps({"good": generator.good, "bad": generator.bad, "took_s": took_s, "late_ms": late_ms}),
        flush=True,
    )


if __name__ == "__main__":
    where, name, *numbers = sys.argv[1:]
    main(where, name, int(numbers[0]), float(numbers[1]), float(numbers[2]), int(numbers[3]))
