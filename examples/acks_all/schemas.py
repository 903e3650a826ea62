"""What goes over HTTP, bounded and checked."""

from __future__ import annotations

from typing import Annotated, Literal, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from examples.acks_all.topic_partition import TopicPartition

MAX_BODY_BYTES = 4 * 1024 * 1024
MAX_FETCH_BYTES = 4 * 1024 * 1024
MAX_PARTITIONS = 100
MAX_RECORDS = 1_000
# Proxies cut idle requests at about a minute.
MAX_WAIT_MS = 55_000
# Whole numbers that every JSON reader keeps.
MAX_OFFSET = 2**53 - 1

Topic = Annotated[str, Field(pattern=r"^[A-Za-z0-9._-]{1,100}$")]
Number = Annotated[int, Field(ge=0, le=10_000)]
BrokerId = Annotated[int, Field(ge=0, le=10_000)]
Offset = Annotated[int, Field(ge=0, le=MAX_OFFSET)]
Epoch = Annotated[int, Field(ge=0, le=2**31 - 1)]
WaitMs = Annotated[int, Field(ge=0, le=MAX_WAIT_MS)]
FetchBytes = Annotated[int, Field(ge=1, le=MAX_FETCH_BYTES)]
# How much a record may have is the broker's setting; this is what any body may hold.
Value = Annotated[str, Field(min_length=1, max_length=MAX_BODY_BYTES)]


class Schema(BaseModel):
    """Strict: no member that is not named here, and no text where a number belongs."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class OfPartition(Schema):
    """Something about one partition."""

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
        raise ValueError("a partition is given twice: once is enough")
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
    """`acks` "all" waits for every replica that is in sync, 1 for none but the leader."""

    acks: Literal["all", 1] = "all"
    timeout_ms: WaitMs = 30_000
    partitions: Partitions[ProduceBatch]


class FetchEntry(OfPartition):
    """From where to read one partition."""

    offset: Offset
    leader_epoch: Epoch | None = None
    max_bytes: FetchBytes = 1024 * 1024


class FetchBody(Schema):
    """A consumer's fetch, or with `replica_id` a follower's."""

    replica_id: BrokerId | None = None
    min_bytes: Annotated[int, Field(ge=0, le=MAX_FETCH_BYTES)] = 1
    max_bytes: FetchBytes = MAX_FETCH_BYTES
    max_wait_ms: WaitMs = 500
    partitions: Partitions[FetchEntry]


class LeaderBody(Schema):
    """Who leads a partition, in the controller's words; null while nobody does."""

    leader: BrokerId | None
    leader_epoch: Epoch


class Problem(BaseModel):
    """A refusal (RFC 9457); its own members stand beside these."""

    model_config = ConfigDict(extra="allow")

    type: str
    title: str
    status: int
    detail: str


class Produced(OfPartition):
    """What became of the records for one partition."""

    error: Problem | None = None
    base_offset: int | None = None


class FetchedRecord(Schema):
    """One record."""

    offset: int
    leader_epoch: int
    value: str


class Fetched(OfPartition):
    """What one partition had to give."""

    error: Problem | None = None
    records: list[FetchedRecord] = []
    high_watermark: int | None = None
    log_start_offset: int | None = None
    leader_epoch: int | None = None


class ProduceAnswerBody(BaseModel):
    """One status a partition, in the order of the request."""

    partitions: list[Produced]


class FetchAnswerBody(BaseModel):
    """One result a partition, in the order of the request."""

    partitions: list[Fetched]


class PartitionState(OfPartition):
    """A partition as its broker sees it."""

    leader: int | None
    is_leader: bool
    """Whether the broker that answers leads it."""
    leader_epoch: int
    epoch_start_offset: int
    """Where its log ended when it began to lead."""
    isr: list[int]
    log_start_offset: int
    high_watermark: int
    log_end_offset: int
    follower_end_offsets: dict[int, int]
    """By follower; -1 before its first fetch in this epoch."""
    is_offline: bool
    waiting_produces: int
    waiting_fetches: int
