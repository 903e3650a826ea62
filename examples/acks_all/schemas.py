"""The JSON of requests and responses, with limits."""

from __future__ import annotations

from typing import Annotated, Literal, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from examples.acks_all.topic_partition import TopicPartition

MAX_BODY_BYTES = 4 * 1024 * 1024
MAX_FETCH_BYTES = 4 * 1024 * 1024
MAX_PARTITIONS = 100
MAX_RECORDS = 1_000
# Proxies close idle requests after about a minute.
MAX_WAIT_MS = 55_000
# The largest integer that every JSON parser represents exactly.
MAX_OFFSET = 2**53 - 1

Topic = Annotated[str, Field(pattern=r"^[A-Za-z0-9._-]{1,100}$")]
Number = Annotated[int, Field(ge=0, le=10_000)]
BrokerId = Annotated[int, Field(ge=0, le=10_000)]
Offset = Annotated[int, Field(ge=0, le=MAX_OFFSET)]
Epoch = Annotated[int, Field(ge=0, le=2**31 - 1)]
WaitMs = Annotated[int, Field(ge=0, le=MAX_WAIT_MS)]
FetchBytes = Annotated[int, Field(ge=1, le=MAX_FETCH_BYTES)]
# The limit of a record is a setting of the broker; this is the limit of any body.
Value = Annotated[str, Field(min_length=1, max_length=MAX_BODY_BYTES)]


class Schema(BaseModel):
    """A strict schema: no unknown members and no conversion between types."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class OfPartition(Schema):
    """A schema for one partition."""

    topic: Topic
    partition: Number

    @property
    def topic_partition(self) -> TopicPartition:
        """The partition's name."""
        return TopicPartition(self.topic, self.partition)


Entry = TypeVar("Entry", bound=OfPartition)


def _each_once(entries: list[Entry]) -> list[Entry]:
    names = {entry.topic_partition for entry in entries}
    if len(names) < len(entries):
        raise ValueError("a partition is given twice: give it once")
    return entries


Partitions = Annotated[
    list[Entry],
    Field(min_length=1, max_length=MAX_PARTITIONS),
    AfterValidator(_each_once),
]


class ProduceBatch(OfPartition):
    """Records for one partition."""

    records: Annotated[list[Value], Field(min_length=1, max_length=MAX_RECORDS)]


class ProduceBody(Schema):
    """A produce request; `acks` "all" waits for every in-sync replica, 1 only for the leader."""

    acks: Literal["all", 1] = "all"
    timeout_ms: WaitMs = 30_000
    partitions: Partitions[ProduceBatch]


class FetchEntry(OfPartition):
    """The offset to read from in one partition."""

    offset: Offset
    leader_epoch: Epoch | None = None
    max_bytes: FetchBytes = 1024 * 1024


class FetchBody(Schema):
    """A fetch of a consumer, or with `replica_id` of a follower."""

    replica_id: BrokerId | None = None
    min_bytes: Annotated[int, Field(ge=0, le=MAX_FETCH_BYTES)] = 1
    max_bytes: FetchBytes = MAX_FETCH_BYTES
    max_wait_ms: WaitMs = 500
    partitions: Partitions[FetchEntry]


class LeaderBody(Schema):
    """The leader of a partition, as set by the controller; null if there is none."""

    leader: BrokerId | None
    leader_epoch: Epoch


class Problem(BaseModel):
    """Problem details (RFC 9457), with additional members for some kinds."""

    model_config = ConfigDict(extra="allow")

    type: str
    title: str
    status: int
    detail: str


class Produced(OfPartition):
    """The result of a produce for one partition."""

    error: Problem | None = None
    base_offset: int | None = None


class FetchedRecord(Schema):
    """One record."""

    offset: int
    leader_epoch: int
    value: str


class Fetched(OfPartition):
    """The result of a fetch for one partition."""

    error: Problem | None = None
    records: list[FetchedRecord] = []
    high_watermark: int | None = None
    log_start_offset: int | None = None
    leader_epoch: int | None = None


class ProduceResponseBody(BaseModel):
    """One status per partition, in the order of the request."""

    partitions: list[Produced]


class FetchResponseBody(BaseModel):
    """One result per partition, in the order of the request."""

    partitions: list[Fetched]


class PartitionState(OfPartition):
    """The state of a partition on its broker."""

    leader: int | None
    is_leader: bool
    """True iff the broker that responds is the leader."""
    leader_epoch: int
    epoch_start_offset: int
    """The end of the log when the leader epoch began."""
    isr: list[int]
    log_start_offset: int
    high_watermark: int
    log_end_offset: int
    follower_end_offsets: dict[int, int]
    """The end offset of each follower; -1 before its first fetch in this epoch."""
    is_offline: bool
    waiting_produces: int
    waiting_fetches: int
