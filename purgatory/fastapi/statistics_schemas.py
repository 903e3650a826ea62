"""The JSON of the statistics, as it is documented.

The numbers are those of `Purgatory.statistics()`. These models only describe them: the dataclasses
that hold them are on floors where nothing knows of JSON.
"""

from __future__ import annotations

from pydantic import BaseModel, Field


class WheelLevel(BaseModel):
    """One level of the timing wheel."""

    tick_ms: int = Field(description="Milliseconds that one of its buckets stands for.")
    span_ms: int = Field(description="Milliseconds that the whole level reaches ahead.")
    buckets: int = Field(description="Buckets with something in them.")
    tasks: int = Field(description="Timers in those.")


class SignalStatistics(BaseModel):
    """The history of signals that is kept."""

    signals: int = Field(description="Signals that are kept, of all keys.")
    bytes: int = Field(description="Bytes of their values, as JSON.")
    keys: int = Field(description="Keys that have any.")


class LatenessStatistics(BaseModel):
    """How long after they were due jobs were started by this process."""

    p50_ms: int = Field(description="The median of the last 1,024.")
    p99_ms: int = Field(description="The 99th percentile of the last 1,024.")
    longest_ms: int = Field(
        description="The longest since the start, but for what was missed while nobody ran."
    )


class RecoveryStatistics(BaseModel):
    """Taking up the jobs that were due while nobody ran."""

    is_finished: bool = Field(description="All of them are taken up.")
    overdue: int = Field(description="Jobs taken up so far that were due before the start.")
    missed: int = Field(description='Of those, the ones that were skipped: `"misfire": "skip"`.')
    spread: int = Field(description='Of those, the ones that were put off: `"misfire": "spread"`.')


class JobStatisticsResponse(BaseModel):
    """The delayed jobs of this process since its start, and how many there are in all."""

    held: int = Field(description="Claimed by this process: due soon, or running.")
    running: int = Field(description="Of those, the ones that run in this process now.")
    done: int = Field(description="Runs that ended well.")
    failed: int = Field(description="Jobs that failed for good.")
    retried: int = Field(description="Runs that failed and are tried again.")
    given_back: int = Field(
        description="Jobs left to others: on shutdown, or as this process lacks their handler."
    )
    lost: int = Field(
        description="Runs whose end the store did not take: as a rule another process had taken "
        "over the lease."
    )
    lateness: LatenessStatistics
    recovery: RecoveryStatistics
    outages: int = Field(description="How often the store of jobs was away.")
    store_error: str | None = Field(
        description="What the store said last, where it fails now; null where all is well."
    )
    states: dict[str, int] | None = Field(
        description="Jobs in each state, in all processes; null where the store does not say.",
        examples=[{"waiting": 3, "running": 1, "done": 9, "failed": 0, "cancelled": 2}],
    )


class StatisticsResponse(BaseModel):
    """This process now, and what it did since its start."""

    parked: int = Field(description="Operations that wait now: parked requests, as a rule.")
    keys: int = Field(description="Keys that are watched now.")
    watched: int = Field(description="Watches now: an operation counts once for each of its keys.")
    fired: int = Field(description="Operations that a key completed.")
    expired: int = Field(description="Operations whose time was up.")
    cancelled: int = Field(description="Operations that were cancelled, or whose client left.")
    drained: int = Field(description="Operations that were ended because the process shuts down.")
    is_draining: bool = Field(description="The process is shutting down.")
    signals: SignalStatistics
    timers: int = Field(
        description="Timers that are pending now; one of them ages the signals that are kept."
    )
    levels: list[WheelLevel] = Field(description="The timing wheel, the finest level first.")
    wake_ups: int = Field(description="How often the event loop was woken for the timer.")
    longest_turn_ms: float = Field(
        description="The longest that expirations have held the event loop at once."
    )
    longest_lateness_ms: int = Field(description="The longest that a timer ran after its time.")
    is_compiled: bool = Field(description="The core runs compiled, not as plain Python.")
    jobs: JobStatisticsResponse | None = Field(
        description="Delayed jobs; null where there is no store of jobs."
    )
    refused: dict[str, int] = Field(
        description="How often each bound on what is parked was reached, by the bound's name.",
        examples=[{"max_parked_per_client": 7}],
    )
