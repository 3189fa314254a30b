"""Every bound, with the relations between them asserted once, here.

Settings (`core/config.py`) may lower some of them; none may be raised past what the formats can hold.
"""

from __future__ import annotations

KIB = 1024
MIB = 1024 * KIB

MINUTE_MS = 60_000
HOUR_MS = 60 * MINUTE_MS
DAY_MS = 24 * HOUR_MS

# What a caller may send.
BODY_BYTES_MAX = 4 * MIB
TOPIC_CHARS_MAX = 127
GROUP_CHARS_MAX = 255
ID_CHARS_MAX = 128
MESSAGE_GROUP_CHARS_MAX = 64
PROPERTY_COUNT_MAX = 128
PROPERTIES_BYTES_MAX = 16 * KIB  # with the tag and the keys, as in RocketMQ
CARRIED_BYTES_MAX = 4 * KIB  # of the fields of RocketMQ's message that are kept as properties
MAX_DELAY_MS = 3650 * DAY_MS
HORIZON_MS_MAX = 62 * DAY_MS  # of a forecast by minutes

# What a frame may hold: a place packs (frame offset, row) into 63 bits, 16 of them for the row.
ROW_BITS = 16
FRAME_ROWS_MAX = 1 << ROW_BITS
SHARED_ROWS_MAX = 4096  # messages of a request that says once what they share
LOG_OFFSET_MAX = 1 << (63 - ROW_BITS)
FRAME_BYTES_MAX = 64 * MIB
# Of a request over the Unix socket; larger ones gain nothing there.
LOCAL_REQUEST_BYTES_MAX = 1 * MIB
SEGMENT_BYTES = 128 * MIB

# An answer that carries bodies ends with the message that takes it over this.
ANSWER_BYTES_MAX = 16 * MIB
# A larger body is delivered alone: gRPC libraries left as they are refuse 4 MiB with its envelope, and with
# it all that came in the same answer.
BODY_BYTES_IN_COMPANY_MAX = 4 * MIB - 64 * KIB

QUEUES_PER_TOPIC_MAX = 1024
QUEUES_PER_TOPIC_DEFAULT = 4
# Topics whose messages one group may send back: each has a queue in the group's retry topic.
RETRY_ORIGINS_MAX = 1 << 15

# Memory the release layer may hold for messages that are not due yet.
NEAR_COUNT_MAX = 2_000_000
# Messages in the level queues, eight bytes each; what comes beyond goes through the pipeline.
LEVEL_WAITING_MAX = 16_000_000

TIME_MS_MAX = 1 << 53  # beyond any time: what a JSON number is exact to
RECEIVE_WAIT_MS_MAX = 60_000  # of one call that waits for messages
RECEIVE_COUNT_MAX = 1024  # messages of one receive
ATTEMPTS_MAX = 1_000_000  # of a group, before a message becomes a dead letter
RELEASE_RATE_MAX = 1_000_000_000  # of a topic, a second
DEDUPLICATION_MS = HOUR_MS

assert BODY_BYTES_MAX + PROPERTIES_BYTES_MAX + CARRIED_BYTES_MAX < FRAME_BYTES_MAX <= SEGMENT_BYTES
assert SEGMENT_BYTES < LOG_OFFSET_MAX
LOOK_COUNT_MAX = 10_000  # rows of one answer to a query
