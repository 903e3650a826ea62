"""Every error that the library raises of its own accord.

    PurgatoryError
    +-- InvalidKeyError (ValueError)         a watch key that is empty, too long or not printable
    +-- InvalidTimeoutError (ValueError)     a timeout that is NaN, infinite or out of range
    +-- InvalidValueError (ValueError)       a signal's value that is not JSON, or too large
    +-- CursorError (ValueError)
    |   +-- BadCursorError                   not a cursor that this library could have made
    |   +-- CursorExpiredError (LookupError) history since that cursor is no longer kept
    +-- LimitReachedError (RuntimeError)     a bound on what may wait at once
    +-- PurgatoryClosedError (RuntimeError)  used before it is open, or after it was closed
    |   +-- PurgatoryDrainingError           shutting down: it parks no more callers
    +-- WrongThreadError (RuntimeError)      used from another thread than its event loop's
    +-- SeveralWorkersError (RuntimeError)   several workers that cannot reach each other
    +-- SignalsError                         of signals that several processes share
    |   +-- SignalsUnavailableError (ConnectionError)  out of reach; may or may not be done
    |   +-- SignalsNotReadyError (RuntimeError)  the server's settings would lose signals
    |   +-- SignalsConflictError (RuntimeError)  a condition of the fire does not hold
    +-- OwnershipError                       of names that one process owns at a time
    |   +-- LeaseLostError (RuntimeError)    the lease has ended: acquire the name again
    |   +-- OwnershipUnavailableError (ConnectionError)  the lease store is out of reach
    |   +-- OwnershipNotReadyError (RuntimeError)        the lease store lacks a setting
    +-- JobError                             of delayed jobs; all are in purgatory.job_errors
        +-- InvalidJobError (ValueError)     a handler's name, keys, policy or attempts
        +-- InvalidPayloadError (ValueError) a payload that is not JSON, or too large
        +-- InvalidDeadlineError (ValueError) past, too far ahead, or without a zone
        +-- UnknownHandlerError (LookupError) no handler is registered under that name
        +-- JobNotFoundError (LookupError)   no such job, or not any more
        +-- DuplicateJobError (RuntimeError) a waiting job has the same dedupe key
        +-- IdempotencyConflictError (RuntimeError) the idempotency key was used for another job
        +-- JobConflictError (RuntimeError)  the job's state does not allow it
        +-- JobChangedError (RuntimeError)   the job is at another version than was asked for
        +-- CorruptJobError (ValueError)     a stored record that is not a job
        +-- RetryJobError (RuntimeError)     raised by a handler: try again, perhaps later
        +-- FailJobError (RuntimeError)      raised by a handler: do not try again
        +-- HandlerTimeoutError (TimeoutError) an attempt took longer than its handler allows
        +-- NoJobStoreError (RuntimeError)   the purgatory was given no store of jobs
        +-- StoreError                       the store cannot do it
            +-- StoreUnavailableError (ConnectionError)  out of reach; may or may not be done
            |   +-- JobsNotFiredError            a key fired, but the jobs on it are not decided
            |   +-- StoreBusyError               another transaction has locked the job
            +-- StoreReadOnlyError (PermissionError)     takes no writes
            +-- StoreFullError (RuntimeError)            has no room for another job
            |   +-- StoreOutOfSpaceError             its disk or memory is full
            +-- StoreNotReadyError (RuntimeError)        lacks a migration or a setting

Each also inherits the closest builtin exception. Arguments of the wrong type raise TypeError.
"""

from __future__ import annotations

from dataclasses import fields
from functools import partial
from typing import Any

__all__ = [
    "BadCursorError",
    "CursorError",
    "CursorExpiredError",
    "InvalidKeyError",
    "InvalidTimeoutError",
    "InvalidValueError",
    "LeaseLostError",
    "LimitReachedError",
    "OwnershipError",
    "OwnershipNotReadyError",
    "OwnershipUnavailableError",
    "PurgatoryClosedError",
    "PurgatoryDrainingError",
    "PurgatoryError",
    "SeveralWorkersError",
    "SignalsConflictError",
    "SignalsError",
    "SignalsNotReadyError",
    "SignalsUnavailableError",
    "WrongThreadError",
]


class PurgatoryError(Exception):
    """Something went wrong in purgatory."""

    def __init__(self, detail: str | None = None) -> None:
        """Set the message, which names the value, the limit and the way out."""
        # The docstring is the default message, so that an error is never empty.
        self.detail = detail or self.summary
        super().__init__(self.detail)

    @property
    def summary(self) -> str:
        """The sentence of the class, for clients: `detail` may name hosts, users and statements."""
        return (type(self).__doc__ or "").strip()

    def __reduce__(self) -> tuple[Any, ...]:
        """Copy and pickle as it is: pools of processes hang on an error that cannot be."""
        # The default calls the class with the message, but many are made of something else.
        return _restored, (type(self), self.args), self.__dict__


def _restored(kind: type[PurgatoryError], args: tuple[Any, ...]) -> PurgatoryError:
    """Return an error without its attributes."""
    error = kind.__new__(kind)
    error.args = args
    return error


class InvalidKeyError(PurgatoryError, ValueError):
    """A watch key is 1 to 256 printable characters."""


class InvalidTimeoutError(PurgatoryError, ValueError):
    """A timeout is a finite number of seconds, zero or more."""


class InvalidValueError(PurgatoryError, ValueError):
    """A signal's value is JSON of a bounded size."""


class CursorError(PurgatoryError, ValueError):
    """A cursor cannot be used."""


class BadCursorError(CursorError):
    """A cursor is an opaque string from an earlier answer."""


class CursorExpiredError(CursorError, LookupError):
    """The history since this cursor is no longer kept."""

    def __init__(self, detail: str | None = None, *, key: str, earliest: str, head: str) -> None:
        """Set the key, and the cursors from which a reader can continue."""
        super().__init__(detail)
        self.key = key
        self.earliest = earliest
        self.head = head


class LimitReachedError(PurgatoryError, RuntimeError):
    """A limit on waiting operations is reached."""

    def __init__(self, detail: str | None = None, *, limit: str, maximum: int) -> None:
        """Set the name of the limit's setting, and its value."""
        super().__init__(detail)
        self.limit = limit
        self.maximum = maximum


class PurgatoryClosedError(PurgatoryError, RuntimeError):
    """The purgatory is not open."""


class PurgatoryDrainingError(PurgatoryClosedError):
    """The purgatory is draining."""


class WrongThreadError(PurgatoryError, RuntimeError):
    """A purgatory belongs to the thread of its event loop."""


class SeveralWorkersError(PurgatoryError, RuntimeError):
    """Several workers that cannot reach each other would lose signals."""


class SignalsError(PurgatoryError):
    """The signals that several processes share are not usable."""


class SignalsUnavailableError(SignalsError, ConnectionError):
    """The server of signals is out of reach or refuses writes; a fire may or may not be done."""

    def __init__(self, detail: str | None = None, *, is_behind: bool = False) -> None:
        """Set whether the server is fine, and this process has not read all from it yet."""
        self.is_behind = is_behind
        super().__init__(detail)

    @property
    def summary(self) -> str:
        """The sentence of the class, for clients: `detail` may name hosts and users."""
        if self.is_behind:
            return "this process has not read the signals up to that cursor yet: try again"
        return "the server of the signals is out of reach, or refuses writes now"


class SignalsNotReadyError(SignalsError, RuntimeError):
    """The server of the signals would lose them, or has those of another configuration."""


class SignalsConflictError(SignalsError, RuntimeError):
    """A condition of the fire does not hold: nothing was fired."""

    def __init__(self, detail: str | None = None, *, is_name_reused: bool = False) -> None:
        """Set which: the name belongs to another request, or the key has fired since."""
        super().__init__(detail)
        self.is_name_reused = is_name_reused


class OwnershipError(PurgatoryError):
    """A name cannot be owned, or is owned no longer."""


class LeaseLostError(OwnershipError, RuntimeError):
    """The lease has ended: acquire the name again, and start from the state that it then has."""


class OwnershipUnavailableError(OwnershipError, ConnectionError):
    """The lease store is out of reach; a step may or may not be done, and can be repeated."""


class OwnershipNotReadyError(OwnershipError, RuntimeError):
    """The lease store lacks a setting."""


def check_type(name: str, value: object, wanted: type, example: str) -> None:
    """Raise TypeError unless `value` is a `wanted`; it says to give `example`."""
    if not isinstance(value, wanted):
        raise wrong_type(name, value, example)


def wrong_type(name: str, value: object, example: str) -> TypeError:
    """Return the error for the argument `name`."""
    return TypeError(f"{name} is {repr(value)[:100]}: give {example}")


def check_keys_type(keys: object) -> None:
    """Raise TypeError for a single string, which would be one key a letter, and for no iterable."""
    if isinstance(keys, str):
        short = keys[:64]
        raise TypeError(f"keys is the string {short!r}: give a list of keys, such as [{short!r}]")
    if not hasattr(keys, "__iter__"):
        raise wrong_type("keys", keys, "a list of keys, such as ['order:42']")


def check_numbers(settings: Any) -> None:
    """Raise TypeError for a field of the dataclass `settings` that is no number."""
    for field in fields(settings):
        name, value = field.name, getattr(settings, field.name)
        if not isinstance(value, (int, float)) or isinstance(value, bool):
            raise wrong_type(name, value, "a number, such as 10")


def name_of(function: object) -> str:
    """Return where a function is defined: `module.name`; the class of an object that is called."""
    while isinstance(function, partial):
        function = function.func
    named: Any = function if hasattr(function, "__qualname__") else type(function)
    return f"{named.__module__}.{named.__qualname__}"
