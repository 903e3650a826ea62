"""The history of signals, as delayed jobs read it."""

from __future__ import annotations

from purgatory import Purgatory
from purgatory.jobs.worker.signals_since import SignalHistory
from tests.unit.shared_logs import Logs


async def test_what_fired_in_another_process_counts_once_the_log_was_read_to_its_end() -> None:
    """The process that fired it has asked for jobs already, and does not ask again."""
    logs = Logs()
    async with Purgatory(signals=logs) as purgatory:
        history = SignalHistory(purgatory.signals, logs)
        since = [(key, purgatory.signals.head_of(key)) for key in ("a", "b")]
        logs.unread.append("a")
        await history.read_to_end(["a", "b"])
        assert history.fired_since(since) == [("a", "1")]


async def test_what_fired_in_this_process_counts_at_once() -> None:
    """Each key with its first value, in the order in which they fired."""
    async with Purgatory() as purgatory:
        history = SignalHistory(purgatory.signals, None)
        since = [(key, purgatory.signals.head()) for key in ("a", "b", "c")]
        for key, value in (("c", {"first": True}), ("a", 1), ("c", 2)):
            await purgatory.fire(key, value)
        await history.read_to_end(["a", "b", "c"])
        assert history.fired_since(since) == [("c", '{"first":true}'), ("a", "1")]
