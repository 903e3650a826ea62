"""The JSON of the statistics, for OpenAPI.

The values are those of `Purgatory.statistics()`, whose dataclasses are on floors without JSON.
"""

from __future__ import annotations

from pydantic import BaseModel, Field


class ShardStatistics(BaseModel):
    """How this process follows one log of shared signals."""

    applied: int = Field(description="Signals and drops of this log that were applied here.")
    lag: int = Field(description="Those that were not applied here when it was last read.")
    gaps: int = Field(description="How often some were lost before they were applied here.")
    reconnects: int = Field(description="How often the server of this log was out of reach.")


class SharedSignalStatistics(BaseModel):
    """How this process follows the log of signals that several processes share."""

    appended: int = Field(description="Signals and drops that this process has appended.")
    applied: int = Field(description="Those of all processes that were applied here.")
    lag: int = Field(description="Those that were not applied here when the log was last read.")
    gaps: int = Field(description="How often some were lost before they were applied here.")
    reconnects: int = Field(description="How often the server was out of reach.")
    shards: list[ShardStatistics] = Field(
        description="The same for each log, in the order of their numbers."
    )


class WheelLevel(BaseModel):
    """One level of the timing wheel."""

    tick_ms: int = Field(description="Milliseconds of one bucket.")
    span_ms: int = Field(description="Milliseconds of the whole level.")
    buckets: int = Field(description="Buckets that are not empty.")
    tasks: int = Field(description="Timers in these buckets.")


class SignalStatistics(BaseModel):
    """The signals that are kept."""

    signals: int = Field(description="Signals that are kept, of all keys.")
    bytes: int = Field(description="Bytes of their values, as JSON.")
    keys: int = Field(description="Keys with kept signals.")


class LatenessStatistics(BaseModel):
    """How late this process started jobs after they were due."""

    p50_ms: int = Field(description="The median of the last 1,024.")
    p99_ms: int = Field(description="The 99th percentile of the last 1,024.")
    longest_ms: int = Field(
        description="The longest since the start, without jobs that were due while no process ran."
    )


class RecoveryStatistics(BaseModel):
    """The recovery of jobs that were due while no process ran."""

    is_finished: bool = Field(description="All of them have been claimed.")
    overdue: int = Field(description="Jobs claimed so far that were due before the start.")
    missed: int = Field(description='Of those, the ones that were skipped: `"misfire": "skip"`.')
    spread: int = Field(description='Of those, the ones that were put off: `"misfire": "spread"`.')


class JobStatisticsResponse(BaseModel):
    """The delayed jobs of this process since its start, and the jobs of all processes."""

    held: int = Field(description="Claimed by this process: due soon, or running.")
    running: int = Field(description="Of those, the ones that are running now.")
    waiting: int = Field(description="Of those, the ones that are due and wait for a slot.")
    done: int = Field(description="Runs that succeeded.")
    failed: int = Field(description="Jobs that failed and are not retried.")
    retried: int = Field(description="Runs that failed and are retried.")
    again: int = Field(description="Runs after which the job waits again.")
    given_back: int = Field(description="Jobs left to other processes, on shutdown.")
    put_off: int = Field(
        description="Jobs that were due and found no room to wait for a slot: they are claimed "
        "again a little later, and no attempt is counted."
    )
    lost: int = Field(
        description="Runs whose result the store refused, as a rule because another process had "
        "the lease."
    )
    lateness: LatenessStatistics
    recovery: RecoveryStatistics
    outages: int = Field(description="How often the job store was unavailable.")
    store_error: str | None = Field(
        description="The last error of the store if it is failing now, else null."
    )
    states: dict[str, int] | None = Field(
        description="Jobs in each state, in all processes; null if the store does not respond. "
        "`blocked` are those of them that are due and wait for a place or until their handler is "
        "resumed, and `quarantined` records that are not jobs.",
        examples=[
            {
                "waiting": 3,
                "running": 1,
                "done": 9,
                "failed": 0,
                "cancelled": 2,
                "quarantined": 0,
                "blocked": 1,
            }
        ],
    )


class StatisticsResponse(BaseModel):
    """This process now and since its start."""

    parked: int = Field(description="Operations that are waiting now: parked requests, as a rule.")
    keys: int = Field(description="Keys that are watched now.")
    watched: int = Field(description="Watches now: an operation counts once for each of its keys.")
    parked_bytes: int = Field(
        description="Bytes that the keys of operations with several keys take, about."
    )
    fires: int = Field(description="Signals that this process has fired.")
    fired: int = Field(description="Operations that a key completed.")
    expired: int = Field(description="Operations that reached their deadline.")
    cancelled: int = Field(description="Operations that were cancelled, or whose client left.")
    drained: int = Field(description="Operations that ended because the process shuts down.")
    outdated: int = Field(
        description="Operations that ended, with 410, because signals were lost or are no longer "
        "kept."
    )
    is_draining: bool = Field(description="The process is shutting down.")
    signals: SignalStatistics
    shared_signals: SharedSignalStatistics | None = Field(
        description="Signals exchanged with other processes; null if they are in memory."
    )
    timers: int = Field(
        description="Timers that are pending now; one of them ages the signals that are kept."
    )
    levels: list[WheelLevel] = Field(description="The timing wheel, the finest level first.")
    wake_ups: int = Field(description="How often the event loop was woken for the timer.")
    longest_turn_ms: float = Field(
        description="The longest time for which expirations blocked the event loop."
    )
    longest_lateness_ms: int = Field(description="The longest delay of a timer after its deadline.")
    is_compiled: bool = Field(description="The core runs compiled, not as plain Python.")
    jobs: JobStatisticsResponse | None = Field(
        description="Delayed jobs; null without a job store."
    )
    refused: dict[str, int] = Field(
        description="How often each limit on parked requests was reached, by its name.",
        examples=[{"max_parked_per_client": 7}],
    )
