"""Orders that are not paid in time are closed: the official RocketMQ client for Python, unchanged."""

from __future__ import annotations

import os
import sys
import time

from rocketmq import ClientConfiguration, Credentials, FilterExpression, Message, Producer, SimpleConsumer

ENDPOINT = os.environ.get("TIDEMILL_ENDPOINT", "127.0.0.1:8081")
TOPIC = "order-timeouts"
RUN = f"python-{os.getpid()}"  # so that a broker that is used again does not mix up two runs
ORDERS = 10


def place(producer: Producer, number: int) -> str:
    """Send the time-out of an order; what comes back is what a payment needs."""
    message = Message()
    message.topic = TOPIC
    message.body = f"close order {number}".encode()
    message.keys = f"{RUN}-{number}"
    # This client knows whole seconds. For milliseconds, on the broker's clock, leave this out and say
    # message.add_property("__delay_ms", "2500").
    message.delivery_timestamp = int(time.time()) + 2 + number % 4
    return str(producer.send(message).recall_handle)


def close_unpaid(consumer: SimpleConsumer, expected: int) -> list[tuple[str, int]]:
    """Receive what falls due: the key of each order and how late it was released."""
    closed: list[tuple[str, int]] = []
    give_up = time.monotonic() + 30
    while len(closed) < expected and time.monotonic() < give_up:
        for message in consumer.receive(32, 30):
            consumer.ack(message)
            (key,) = message.keys
            if key.startswith(RUN):
                # Both times are the broker's, so they can be compared on any machine.
                late_ms = int(message.properties["__released_at"]) - int(message.properties["__due_at"])
                closed.append((key, late_ms))
                print(f"{message.body.decode()}: not paid, {late_ms} ms after its time")
    return closed


def main() -> int:
    configuration = ClientConfiguration(ENDPOINT, Credentials())
    producer = Producer(configuration, (TOPIC,))
    consumer = SimpleConsumer(configuration, "order-closer", {TOPIC: FilterExpression()}, await_duration=5)
    producer.startup()
    consumer.startup()
    try:
        handles = {number: place(producer, number) for number in range(ORDERS)}
        paid = [number for number in handles if number % 3 == 0]
        for number in paid:
            producer.recall_message(TOPIC, handles[number])  # raises if it was closed already
            print(f"order {number}: paid, its time-out is recalled")
        closed = close_unpaid(consumer, ORDERS - len(paid))
    finally:
        consumer.shutdown()
        producer.shutdown()

    expected = sorted(f"{RUN}-{number}" for number in handles if number not in paid)
    holds = sorted(key for key, _ in closed) == expected and all(late_ms >= 0 for _, late_ms in closed)
    print("everything held" if holds else f"expected {expected}, got {closed}")
    return 0 if holds else 1


if __name__ == "__main__":
    sys.exit(main())
