"""The errors of a broker, with the status and the problem type that HTTP shows.

    BrokerError
    +-- UnknownPartition (LookupError)               404
    +-- NotLeader (RuntimeError)                     421
    +-- StorageFailed (OSError)                      500
    +-- FencedLeaderEpoch (ValueError)               409
    +-- UnknownLeaderEpoch (ValueError)              409
    +-- UnknownReplica (LookupError)                 403
    +-- OffsetOutOfRange (LookupError)               416
    +-- RecordTooLarge (ValueError)                  413
    +-- LogFull (RuntimeError)                       507
    +-- NotEnoughReplicas (RuntimeError)             503
    +-- NotEnoughReplicasAfterAppend (RuntimeError)  503
    +-- TimedOut (TimeoutError)                      504
    +-- NotAcknowledged (RuntimeError)               503
    +-- BrokerBusy (RuntimeError)                    503
    +-- BrokerClosing (RuntimeError)                 503

Source: Kafka's `Errors`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

Members = Mapping[str, object]


class BrokerError(Exception):
    """The broker could not handle the request."""

    slug: ClassVar[str] = "broker-error"
    status: ClassVar[int] = 500

    def __init__(self, detail: str | None = None, members: Members | None = None) -> None:
        """Keep the text for people and the members for programs."""
        self.detail = detail or self.title
        self.members: Members = members or {}
        super().__init__(self.detail)

    @property
    def title(self) -> str:
        """The name of the kind of error."""
        return (type(self).__doc__ or "").strip().rstrip(".")


class UnknownPartition(BrokerError, LookupError):
    """This broker has no such topic or partition."""

    slug = "unknown-partition"
    status = 404


class NotLeader(BrokerError, RuntimeError):
    """This broker does not lead the partition."""

    slug = "not-leader"
    status = 421  # Misdirected Request: the same request is valid at another broker.


class StorageFailed(BrokerError, OSError):
    """The partition's storage has failed."""

    slug = "storage-failed"
    status = 500


class FencedLeaderEpoch(BrokerError, ValueError):
    """The leader epoch is older than the partition's."""

    slug = "fenced-leader-epoch"
    status = 409


class UnknownLeaderEpoch(BrokerError, ValueError):
    """The leader epoch is newer than the one that this broker knows."""

    slug = "unknown-leader-epoch"
    status = 409


class UnknownReplica(BrokerError, LookupError):
    """This broker is not a replica of the partition."""

    slug = "unknown-replica"
    status = 403


class OffsetOutOfRange(BrokerError, LookupError):
    """The partition has no such offset."""

    slug = "offset-out-of-range"
    status = 416


class RecordTooLarge(BrokerError, ValueError):
    """A record is larger than the limit of the broker."""

    slug = "record-too-large"
    status = 413


class LogFull(BrokerError, RuntimeError):
    """The partition has reached its limit of uncommitted records."""

    slug = "log-full"
    status = 507


class NotEnoughReplicas(BrokerError, RuntimeError):
    """Too few replicas are in sync; nothing was appended."""

    slug = "not-enough-replicas"
    status = 503


class NotEnoughReplicasAfterAppend(BrokerError, RuntimeError):
    """Too few replicas are in sync; the records were appended."""

    slug = "not-enough-replicas-after-append"
    status = 503


class TimedOut(BrokerError, TimeoutError):
    """The replicas did not fetch the records in time."""

    slug = "timed-out"
    status = 504


class NotAcknowledged(BrokerError, RuntimeError):
    """The broker stopped waiting for the replicas."""

    slug = "not-acknowledged"
    status = 503


class BrokerBusy(BrokerError, RuntimeError):
    """Too many requests are waiting."""

    slug = "broker-busy"
    status = 503


class BrokerClosing(BrokerError, RuntimeError):
    """The broker is shutting down."""

    slug = "broker-closing"
    status = 503
