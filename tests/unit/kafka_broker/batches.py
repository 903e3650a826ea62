"""Record batches with a payload of some size: the broker looks at nothing but their head."""

from __future__ import annotations

from crc32c import crc32c

from examples.kafka_broker.log.record_batch import HEADER


def batch(
    count: int = 1,
    payload: bytes = b"record",
    *,
    timestamp: int = 0,
    producer: tuple[int, int, int] = (-1, -1, -1),
) -> bytes:
    """Return a batch as a producer sends it; `producer` is its id, epoch and base sequence."""
    fields = (0, count - 1, timestamp, timestamp, *producer, count)
    head = HEADER.pack(0, HEADER.size - 12 + len(payload), -1, 2, 0, *fields)
    crc = crc32c(head[21:] + payload)
    return head[:17] + crc.to_bytes(4) + head[21:] + payload
