"""Orders that are not paid in time are closed: with `tidemill.Client` and `tidemill.Worker`."""

from __future__ import annotations

import os
import sys
import threading

import tidemill

ENDPOINT = os.environ.get("TIDEMILL_ENDPOINT", "127.0.0.1:8081")
TOPIC = "order-timeouts"
RUN = f"tidemill-{os.getpid()}"  # so that a broker that is used again does not mix up two runs
ORDERS = 10


def main() -> int:
    closed: list[tuple[str, int]] = []
    all_closed = threading.Event()
    paid = [number for number in range(ORDERS) if number % 3 == 0]
    worker = tidemill.Worker(ENDPOINT, group="order-closer")

    @worker.on(TOPIC)
    def close_order(message: tidemill.Message) -> None:
        if not message.key.startswith(RUN) or message.deliver_at_ms is None:
            return
        late_ms = message.released_at_ms - message.deliver_at_ms  # both by the broker's clock
        closed.append((message.key, late_ms))
        print(f"{message.text}: not paid, {late_ms} ms after its time")
        if len(closed) == ORDERS - len(paid):
            all_closed.set()

    with tidemill.Client(ENDPOINT) as client, worker:
        results = [
            client.send(
                TOPIC, f"close order {number}", delay=1.5 + 0.37 * (number % 4), key=f"{RUN}-{number}"
            )
            for number in range(ORDERS)
        ]
        for number in paid:
            answer = client.cancel(results[number].handle or "")
            print(f"order {number}: paid, its time-out is {answer}")
        all_closed.wait(30)

    expected = sorted(f"{RUN}-{number}" for number in range(ORDERS) if number not in paid)
    holds = sorted(key for key, _ in closed) == expected and all(late_ms >= 0 for _, late_ms in closed)
    print("everything held" if holds else f"expected {expected}, got {closed}")
    return 0 if holds else 1


if __name__ == "__main__":
    sys.exit(main())
