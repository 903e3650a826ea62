"""How jobs are run."""

from __future__ import annotations

from dataclasses import dataclass, field

from purgatory.retry_policy import RetryPolicy


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSettings:
    """Every setting of a worker, each with its default."""

    max_running: int = 100
    """Handlers that run at once in this process."""
    max_threads: int = 32
    """Of those, the ones that are not async and so run in threads."""
    max_held: int = 10_000
    """Jobs that wait in this process's timer; up to as many again that are due at once."""
    lease_ms: int = 15_000
    """How long a job stays with a worker that says nothing any more, as one that was killed."""
    poll_ms: int = 1_000
    """How often to look for what other processes deferred, where the store does not tell."""
    misfire_after_ms: int = 1_000
    """A job that was due longer than this before anybody looked is missed: see its `misfire`."""
    spread_ms: int = 60_000
    """Jobs that were missed and are to be spread run within this."""
    unhandled_delay_ms: int = 5_000
    """A job whose handler this process lacks, and that is due, is left to others for this long."""
    grace: float = 5.0
    """Seconds that handlers have to end once the purgatory drains."""
    retry: RetryPolicy = field(default_factory=RetryPolicy)

    def __post_init__(self) -> None:
        """Raise ValueError for what is not above zero, or zero where that makes sense."""
        for name in self.__slots__:
            value = getattr(self, name)
            if name == "retry":
                if not isinstance(value, RetryPolicy):
                    raise ValueError(f"retry is {value!r}: give a RetryPolicy")
                continue
            least = 0 if name in ("grace", "misfire_after_ms") else 1
            # A fraction of a job, or of what a database counts in milliseconds, would fail later.
            is_number = type(value) is int or (name == "grace" and type(value) is float)
            # Written so that NaN, which compares as false, is refused.
            if not is_number or not least <= value < float("inf"):
                kind = "number" if name == "grace" else "whole number"
                raise ValueError(f"{name} is {value!r}: give a {kind} from {least}")
