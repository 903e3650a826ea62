"""What is measured: the name, meaning and labels of every metric."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

MetricType = Literal["counter", "gauge", "histogram"]


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric. All have the label `worker` besides, unless they are of all processes."""

    name: str
    """Without `_total` at its end, which Prometheus has for counters."""
    type: MetricType
    text: str
    labels: tuple[str, ...] = ()
    is_of_all: bool = False
    """True iff each process has the same value, as for what is in a store that all share."""


def _counter(name: str, text: str, *labels: str) -> Metric:
    return Metric(f"purgatory_{name}", "counter", text, labels)


def _gauge(name: str, text: str, *labels: str) -> Metric:
    return Metric(f"purgatory_{name}", "gauge", text, labels)


def _of_all(name: str, text: str, *labels: str) -> Metric:
    return Metric(f"purgatory_{name}", "gauge", text, labels, is_of_all=True)


def _histogram(name: str, text: str, *labels: str) -> Metric:
    return Metric(f"purgatory_{name}", "histogram", text, labels)


INFO: Final = _gauge("info", "Always 1; labels say what runs.", "version", "compiled")
READY: Final = _gauge("ready", "1 if the worker takes requests and lacks nothing, as /readyz says.")
DRAINING: Final = _gauge("draining", "1 while the worker shuts down.")

PARKED: Final = _gauge("parked", "Operations that wait: parked requests, as a rule.")
PARKED_KIND: Final = _gauge("parked_by_kind", "Operations that wait, by kind.", "kind")
PARKED_BYTES: Final = _gauge(
    "parked_bytes", "About the memory that the keys of operations with several keys take."
)
KEYS: Final = _gauge("keys", "Keys that are watched.")
WATCHES: Final = _gauge("watches", "Watches: an operation counts once for each of its keys.")
LIMIT: Final = _gauge("limit", "The limits of the worker, by name.", "limit")
LIMITS: Final = ("max_parked", "max_parked_bytes", "max_signals", "max_signal_bytes")
"""The limits that fill up, so that an alert can say how far."""

WAITS: Final = _counter("waits", "Operations that ended, by outcome.", "outcome")
WAIT_SECONDS: Final = _histogram(
    "wait_seconds", "How long operations waited, by kind and outcome.", "kind", "outcome"
)
LATENESS_SECONDS: Final = _histogram(
    "lateness_seconds", "How long after their deadline operations expired."
)
FIRES: Final = _counter("fires", "Signals that the worker has fired.")
REFUSED: Final = _counter("refused", "Requests refused because of a limit, by its name.", "limit")

SIGNALS: Final = _gauge("signals", "Signals that are kept.")
SIGNAL_BYTES: Final = _gauge("signal_bytes", "Bytes of the values of the signals that are kept.")
SIGNAL_KEYS: Final = _gauge("signal_keys", "Keys with signals that are kept.")
SIGNALS_APPENDED: Final = _counter(
    "signals_appended", "Signals and drops that the worker has appended to the shared logs."
)
SIGNALS_APPLIED: Final = _counter(
    "signals_applied", "Entries of a shared log that were applied in the worker.", "shard"
)
SIGNALS_LAG: Final = _gauge(
    "signals_lag", "Entries of a shared log that were not applied when it was last read.", "shard"
)
SIGNALS_GAPS: Final = _counter(
    "signals_gaps", "How often entries of a shared log were lost before they were applied.", "shard"
)
SIGNALS_RECONNECTS: Final = _counter(
    "signals_reconnects", "How often the server of a shared log was out of reach.", "shard"
)

TIMERS: Final = _gauge("timers", "Timers that are pending.")
WHEEL_TIMERS: Final = _gauge(
    "wheel_timers", "Timers in each level of the timing wheel; 0 is the finest.", "level"
)
WHEEL_BUCKETS: Final = _gauge("wheel_buckets", "Buckets of each level that are not empty.", "level")
WAKE_UPS: Final = _counter("wake_ups", "How often the event loop was woken for the timer.")
LONGEST_TURN: Final = _gauge(
    "longest_turn_seconds", "The longest that expirations have held the event loop at once."
)
LONGEST_LATENESS: Final = _gauge(
    "longest_lateness_seconds", "The longest that a timer ran after its time."
)

JOBS: Final = _of_all(
    "jobs", "Jobs in the store by state, of all processes: each worker says the same.", "state"
)
JOBS_BLOCKED: Final = _of_all(
    "jobs_blocked",
    "Jobs that are due and wait for a slot or for the end of a pause, of all processes.",
)
HANDLER_JOBS: Final = _of_all(
    "handler_jobs",
    "Jobs that wait and run, by handler, of all processes; unless they are too many to count.",
    *("handler", "state"),
)
HANDLER_JOBS_BLOCKED: Final = _of_all(
    "handler_jobs_blocked",
    "Of these, jobs that are due and wait for a slot or for the end of a pause, by handler.",
    *("handler", "blocked_by"),
)
JOBS_ENDED: Final = _counter(
    "jobs_ended", "Jobs that the worker ended, by handler and final state.", "handler", "state"
)
JOB_LATENESS_SECONDS: Final = _histogram(
    "job_lateness_seconds", "How long after they were due the jobs that ended here were started."
)
JOB_RETRIES: Final = _counter("job_retries", "Runs that failed and are tried again.")
JOBS_HELD: Final = _gauge("jobs_held", "Jobs leased by the worker: due soon, or running.")
JOBS_RUNNING: Final = _gauge("jobs_running", "Jobs that the worker runs.")
JOBS_DUE: Final = _gauge("jobs_due", "Jobs of the worker that are due and wait for a slot.")
JOBS_RELEASED: Final = _counter("jobs_released", "Jobs left to other workers, on shutdown.")
JOBS_PUT_OFF: Final = _counter(
    "jobs_put_off",
    "Jobs that were due, found no room to wait for a slot, and are claimed again later.",
)
JOB_LEASES_LOST: Final = _counter(
    "job_leases_lost", "Runs whose result the store refused: another worker had the lease."
)
JOBS_RECOVERED: Final = _counter(
    "jobs_recovered", "Jobs claimed that were due while no worker ran."
)
JOBS_MISSED: Final = _counter("jobs_missed", "Of those, jobs that were skipped.")
JOBS_SPREAD: Final = _counter("jobs_spread", "Of those, jobs that were put off to spread the load.")
RECOVERING: Final = _gauge("recovering", "1 while jobs are claimed that were due before.")
JOB_STORE_OUTAGES: Final = _counter("job_store_outages", "How often the job store failed.")
JOB_STORE_UP: Final = _gauge("job_store_up", "1 if the job store works for the worker.")

METRICS: Final = tuple(value for value in list(globals().values()) if isinstance(value, Metric))
"""All of them, in the order of this file."""
