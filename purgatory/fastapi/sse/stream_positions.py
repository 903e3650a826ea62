"""Positions of a stream on several keys, and the one cursor that names them.

Invariant: keys whose signals are in one log have the same position. A cursor has a part for each
log, so it stays short however many keys there are.
"""

from __future__ import annotations

from collections.abc import Sequence

from purgatory.errors import CursorExpiredError
from purgatory.fastapi.http.problem_mapping import problem_of_error
from purgatory.fastapi.http.problems import Problem
from purgatory.signals import MemorySignals, Signal

Keys = tuple[str, ...]
Positions = tuple[int, ...]

# Signals of a key that are read at once.
MAX_READ = 100


def cursor_of_positions(signals: MemorySignals, keys: Keys, positions: Sequence[int]) -> str:
    """Return the cursor of a reader of `keys` at `positions`."""
    if not signals.is_shared or len(keys) == 1:
        return signals.cursor(positions[0])
    logs = {
        id(signals.part((key,))): position for key, position in zip(keys, positions, strict=True)
    }
    return ".".join(map(signals.cursor, logs.values()))


def earliest_positions(signals: MemorySignals, keys: Keys) -> Positions:
    """Return the earliest positions after which every signal of each key is retained."""
    earliest: dict[int, int] = {}
    logs = [id(signals.part((key,))) for key in keys]
    for key, log in zip(keys, logs, strict=True):
        earliest[log] = max(earliest.get(log, 0), signals.earliest(key))
    return tuple(earliest[log] for log in logs)


def positions_of_cursor(signals: MemorySignals, keys: Keys, cursor: str | None) -> Positions:
    """Return the positions of `cursor`; "0" is the earliest with all signals of all keys.

    Raises BadCursorError and, if a signal of any key was trimmed since, Problem.
    """
    if cursor is None:
        return tuple(signals.head_of(key) for key in keys)
    if cursor == "0":
        return earliest_positions(signals, keys)
    try:
        return tuple(signals.position(key, cursor) for key in keys)
    except CursorExpiredError as error:
        raise expired_problem(signals, keys, error) from error


def lost_signals(signals: MemorySignals, keys: Keys, positions: Positions) -> Problem | None:
    """Return the problem of a reader at `positions` if a signal after them was trimmed."""
    for key, position in zip(keys, positions, strict=True):
        if position < signals.earliest(key):
            try:
                signals.position(key, signals.cursor(position))
            except CursorExpiredError as error:
                return expired_problem(signals, keys, error)
    return None


def expired_problem(signals: MemorySignals, keys: Keys, error: CursorExpiredError) -> Problem:
    """Return the problem of an expired cursor, with cursors that are good for all of `keys`."""
    problem = problem_of_error(error)
    problem.members["head"] = signals.cursor_of(keys)
    earliest = earliest_positions(signals, keys)
    problem.members["earliest"] = cursor_of_positions(signals, keys, earliest)
    return problem


def unread_signals(signals: MemorySignals, keys: Keys, positions: Positions) -> list[Signal]:
    """Return some of the signals after `positions`, in the order in which they are to be read.

    Each log is in the order of its offsets, and none is left out in between.
    """
    if len(keys) == 1:
        return signals.read(keys[0], positions[0], MAX_READ)
    found: list[Signal] = []
    horizon = None
    for key, position in zip(keys, positions, strict=True):
        unread = signals.read(key, position, MAX_READ)
        found += unread
        if len(unread) == MAX_READ and (horizon is None or unread[-1].offset < horizon):
            # Later signals of this key were not read, so none of the others may pass them.
            horizon = unread[-1].offset
    found.sort(key=lambda signal: signal.offset)
    if horizon is not None:
        return [signal for signal in found if signal.offset <= horizon]
    return found


class Reading:
    """A reader of `keys` that reads on; a step takes as long however many keys there are."""

    __slots__ = ("_by_log", "_log_of", "_logs", "_signals")

    def __init__(self, signals: MemorySignals, keys: Keys, positions: Positions) -> None:
        """Begin at `positions`."""
        has_logs = signals.is_shared and len(keys) > 1
        self._signals = signals
        self._logs = [id(signals.part((key,))) if has_logs else 0 for key in keys]
        self._log_of = dict(zip(keys, self._logs, strict=True))
        # In the order of `cursor_of_positions`.
        self._by_log = dict(zip(self._logs, positions, strict=True))

    def read(self, signal: Signal) -> str:
        """Go on to after `signal`, the next one of `unread_signals`; return the cursor there."""
        self._by_log[self._log_of[signal.key]] = signal.offset
        return ".".join(map(self._signals.cursor, self._by_log.values()))

    @property
    def positions(self) -> Positions:
        """The positions after what was read."""
        return tuple(self._by_log[log] for log in self._logs)
