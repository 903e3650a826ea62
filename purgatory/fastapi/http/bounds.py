"""Bounds in time and in bytes: on requests that arrive, and on responses that leave.

Not here: how many requests may be parked (`watch`), and how long (`WaitSettings`).
"""

from __future__ import annotations

import asyncio
import logging
import sys
from abc import ABC, abstractmethod
from asyncio import AbstractEventLoop, TimerHandle
from collections.abc import Callable, Iterator
from contextvars import Context
from itertools import islice, takewhile
from typing import Final, Generic, Protocol, TypeVar

from starlette.types import Receive, Scope

from purgatory.fastapi.http.responses import Problem, draining_problem, retry_after
from purgatory.turn_budget import TurnBudget

logger = logging.getLogger("purgatory.fastapi")

Item = TypeVar("Item")


_MOST_IN_A_TURN: Final = 1_000


class Deadlines(Generic[Item]):
    """Calls `on_timeout` with each object that was added `timeout` seconds ago, and not discarded.

    All have the same timeout, so the first one has been there the longest, and one handle of the
    loop serves all: arming and cancelling one per request costs as much as parking does.
    """

    # {object: when it was added}: the order of arrival, and O(1) removal.
    # Invariant: the times only go up; and the handle is armed if there is any object.
    __slots__ = ("_handle", "_on_timeout", "_since", "_timeout", "loop")

    def __init__(
        self, loop: AbstractEventLoop, timeout: float, on_timeout: Callable[[Item], object]
    ) -> None:
        """Begin empty."""
        self.loop = loop
        self._timeout = timeout
        self._on_timeout = on_timeout
        self._since: dict[Item, float] = {}
        self._handle: TimerHandle | None = None

    def __len__(self) -> int:
        """Return the number of objects."""
        return len(self._since)

    def __contains__(self, item: Item) -> bool:
        """Return True iff `item` was added, and has neither expired nor been discarded."""
        return item in self._since

    def __iter__(self) -> Iterator[Item]:
        """Return an iterator over the objects, the oldest first."""
        return iter(self._since)

    def add(self, item: Item) -> None:
        """Begin the timeout of `item`, which must not be there yet."""
        self._since[item] = self.loop.time()
        if self._handle is None:
            self._handle = self._arm(self._timeout)

    def discard(self, item: Item) -> None:
        """Forget `item`. Idempotent."""
        # The handle stays: it finds out when it runs.
        self._since.pop(item, None)

    def _expire(self) -> None:
        now = self.loop.time()
        # Found in one pass: each new iterator skips what was removed from the beginning.
        oldest = islice(self._since.items(), _MOST_IN_A_TURN)
        due = [*takewhile(lambda entry: entry[1] + self._timeout <= now, oldest)]
        budget = TurnBudget()
        try:
            # The handle counts as armed meanwhile: `on_timeout` may add items.
            for item, since in due:
                # Neither discarded meanwhile, nor added once more.
                if self._since.get(item) is since:
                    del self._since[item]
                    self._on_timeout(item)
                    if budget.is_spent():
                        break
        finally:
            # After an error too: the loop reports it, and the other items expire next.
            first = next(iter(self._since.values()), None)
            self._handle = None if first is None else self._arm(first + self._timeout - now)

    def _arm(self, delay: float) -> TimerHandle:
        # Up to the next millisecond, which is as precise as uvloop is. In an empty context: that of
        # the object for which it is armed is none of the others'.
        return self.loop.call_later(delay + 0.001, self._expire, context=Context())


# As nginx has it for a head, and between two pieces of a body, both ways.
DEFAULT_TIMEOUT: Final = 60.0


class ByteBudget(ABC, Generic[Item]):
    """Ends items `timeout` seconds after they begin, or while all hold over `max_bytes`.

    Beyond `max_bytes`, the oldest are ended, except one that alone holds all of the bytes.
    """

    # {item: bytes} of those that hold any, the oldest first: only they can free memory.
    # Invariant: held_bytes == sum(_sizes.values()) and all(_sizes.values()).
    __slots__ = ("_deadlines", "_max_bytes", "_sizes", "_timeout", "held_bytes")

    default_max_bytes: int

    def __init__(self, timeout: float = DEFAULT_TIMEOUT, max_bytes: int | None = None) -> None:
        """Begin empty; `timeout` is in seconds."""
        self._timeout = timeout
        self._max_bytes = self.default_max_bytes if max_bytes is None else max_bytes
        self._sizes: dict[Item, int] = {}
        self._deadlines: Deadlines[Item] | None = None
        self.held_bytes = 0

    def __len__(self) -> int:
        """Return the number of items."""
        return 0 if self._deadlines is None else len(self._deadlines)

    def hold(self, item: Item, size: int) -> None:
        """Count `size` bytes of `item`; its deadline begins with the first call.

        May end any item, `item` too, before it returns.
        """
        loop = asyncio.get_running_loop()
        if self._deadlines is None or self._deadlines.loop is not loop:
            self._deadlines = Deadlines(loop, self._timeout, self._on_timeout)
        if item not in self._deadlines:
            self._deadlines.add(item)
        self._count(item, size)
        if self.held_bytes > self._max_bytes:
            self._make_room()

    def release(self, item: Item) -> None:
        """Forget an item that is complete, or has left. Idempotent."""
        self._count(item, 0)
        if self._deadlines is not None:
            self._deadlines.discard(item)

    @abstractmethod
    def _on_timeout(self, item: Item) -> None:
        """End `item`, which is counted but has no deadline any more."""

    @abstractmethod
    def _evict(self, item: Item) -> None:
        """End `item`, which has been released, to make room."""

    def _current_size(self, item: Item) -> int:
        """Return the bytes that `item` holds now."""
        return self._sizes[item]

    def _count(self, item: Item, size: int) -> None:
        self.held_bytes += size - self._sizes.get(item, 0)
        if size:
            self._sizes[item] = size
        else:
            self._sizes.pop(item, None)

    def _make_room(self) -> None:
        left = self.held_bytes
        found: dict[Item, int] = {}
        evicted: list[Item] = []
        for item, size in self._sizes.items():
            found[item] = current = self._current_size(item)
            left += current - size
            if left <= self._max_bytes or left == current:
                break
            evicted.append(item)
            left -= current
        for item, size in found.items():
            self._count(item, size)
        # All of them first: a connection that is refused is held again, while it lingers.
        for item in evicted:
            self.release(item)
        for item in evicted:
            # Not in the context of the request that takes the room.
            Context().run(self._evict, item)


DEFAULT_MAX_BYTES: Final = 64 * 1024 * 1024
# What is on its way when the process is told to stop arrives within this time, and what does not
# must not delay its exit.
DRAIN_TIMEOUT: Final = 0.5


class IncomingRequest(Protocol):
    """A request that is being received."""

    def refuse(self, problem: Problem) -> None:
        """Respond with `problem`, and close the connection."""
        ...


class IncomingRequests(ByteBudget[IncomingRequest]):
    """Refuses incomplete requests: after `timeout` seconds, or while all hold over `max_bytes`.

    One that alone holds all of the bytes is bounded by its endpoint.
    """

    __slots__ = ()

    default_max_bytes = DEFAULT_MAX_BYTES

    def begin_drain(self) -> None:
        """Refuse what is incomplete after DRAIN_TIMEOUT seconds: a server waits for all of it."""
        loop = asyncio.get_running_loop()
        loop.call_later(DRAIN_TIMEOUT, self._refuse_all, context=Context())

    def _refuse_all(self) -> None:
        for item in list(self._deadlines or ()):
            self.release(item)
            item.refuse(draining_problem("takes no more requests"))

    def _on_timeout(self, item: IncomingRequest) -> None:
        self.release(item)
        item.refuse(
            Problem(
                "request-timeout",
                f"the request was not complete after {self._timeout:g} seconds: send all of it "
                "within that time",
                headers={"Connection": "close"},
                limit=self._timeout,
            )
        )

    def _evict(self, item: IncomingRequest) -> None:
        item.refuse(
            Problem(
                "receiving-full",
                f"incomplete requests hold more than {self._max_bytes} bytes, and this one is the "
                "oldest: send it again, all at once",
                headers={**retry_after(), "Connection": "close"},
                limit="max_incomplete_bytes",
                maximum=self._max_bytes,
            )
        )


# A response that was read has been sent as well: more of them are on their way at once.
DEFAULT_MAX_UNREAD_BYTES: Final = 256 * 1024 * 1024


class UnreadResponse(Protocol):
    """A response that the client has not read yet, or a connection with such responses."""

    @property
    def unread_bytes(self) -> int:
        """The bytes in memory of this process that are not sent."""
        ...

    def give_up(self) -> None:
        """Send no more, and close the connection."""
        ...


class UnreadResponses(ByteBudget[UnreadResponse]):
    """Closes connections whose client reads nothing for `timeout` seconds, or to make room.

    The client loses its response, and nothing else: it did not get the cursor after it.
    """

    __slots__ = ()

    default_max_bytes = DEFAULT_MAX_UNREAD_BYTES

    def _current_size(self, item: UnreadResponse) -> int:
        return item.unread_bytes

    def _on_timeout(self, item: UnreadResponse) -> None:
        if 0 < item.unread_bytes < self._sizes.get(item, 0):
            # Slow, but it reads.
            self.hold(item, item.unread_bytes)
            return
        self.release(item)
        self._give_up(item, f"nothing of it was read for {self._timeout:g} seconds")

    def _evict(self, item: UnreadResponse) -> None:
        self._give_up(
            item, f"such responses hold more than max_unread_bytes ({self._max_bytes}) in all"
        )

    def _give_up(self, item: UnreadResponse, reason: str) -> None:
        logger.info(
            "a connection is closed with %d bytes of its response unread: %s",
            item.unread_bytes,
            reason,
            extra={"action": "response-unread"},
        )
        item.give_up()


# A rejected body of up to so many bytes is still read, and discarded: a connection that is closed
# with unread data is reset, and a client that is still sending loses the response (RFC 9112, 9.6).
MAX_DISCARDED: Final = 16 * 1024 * 1024


async def read_body(
    scope: Scope, receive: Receive, limit: int, incoming: IncomingRequests
) -> bytes:
    """Return the whole body; raise Problem if it is larger than `limit` bytes.

    Raises the Problem with which `incoming` refuses it, too: late, or in need of too much memory;
    and one if the server passes on another body than the request announces.
    """
    announced, expects_continue = _announced(scope)
    if announced == 0:
        return b""
    if announced > limit and (announced > MAX_DISCARDED or expects_continue):
        raise body_too_large(limit)
    reading = _BodyReading()
    try:
        body = await reading.read(receive, limit, incoming)
    except asyncio.CancelledError:
        if not reading.catches():
            raise
    else:
        _check_whole(scope, announced, len(body))
        return body
    finally:
        incoming.release(reading)
    # Outside of the `except`: the cancellation is no context of it.
    raise reading.take_problem()


class OfTask:
    """What the current task receives or sends; it is ended by cancelling the task."""

    __slots__ = ("_task", "is_ended")

    def __init__(self) -> None:
        """Be of the current task."""
        task = asyncio.current_task()
        assert task is not None
        self._task = task
        self.is_ended = False

    def end(self) -> None:
        """Have the task stop, unless it is running: then it sees `is_ended`."""
        self.is_ended = True
        # A cancellation would come later: in what the task does next.
        if self._task is not asyncio.current_task():
            self._task.cancel()

    def catches(self) -> bool:
        """Return True iff the cancellation that was raised is by `end`, and nobody else's too."""
        return self.is_ended and self._task.uncancel() <= 0


class _BodyReading(OfTask):
    """A body that is read by the current task."""

    __slots__ = ("_body", "_problem")

    def __init__(self) -> None:
        super().__init__()
        self._body = bytearray()
        self._problem: Problem | None = None

    def take_problem(self) -> Problem:
        """Return the problem of a refused body, which is not kept.

        Its frames will refer to this object: the body would stay until the garbage collector runs.
        """
        problem, self._problem = self._problem, None
        assert problem is not None
        return problem

    def refuse(self, problem: Problem) -> None:
        """Free the body, and have `read_body` raise `problem`."""
        self._problem = problem
        self._body.clear()
        self.end()

    async def read(self, receive: Receive, limit: int, incoming: IncomingRequests) -> bytes:
        """Return the whole body; raise Problem, or CancelledError once it is refused."""
        body = self._body
        received = 0
        while True:
            incoming.hold(self, len(body))
            if self.is_ended:
                raise self.take_problem()
            message = await receive()
            if message["type"] == "http.disconnect":
                raise Problem("bad-json", "the client left before the body was complete")
            chunk = message.get("body", b"")
            received += len(chunk)
            is_whole = not message.get("more_body", False)
            if received <= limit:
                body += chunk
            else:
                body.clear()
                if is_whole or received > MAX_DISCARDED:
                    raise body_too_large(limit)
            if is_whole:
                return bytes(body)


def _check_whole(scope: Scope, announced: int, received: int) -> None:
    if announced == received:
        return
    # uvicorn on httptools drops the body of a request that offers an upgrade, such as h2c.
    is_upgrade = any(name == b"upgrade" for name, _ in scope["headers"])
    if announced == -1 and (received or not is_upgrade):
        return
    expected = "a body" if announced == -1 else f"a body of {announced} bytes"
    raise Problem(
        "bad-json",
        f"the request announces {expected}, and the server passed {received} bytes of it on: send "
        "it without the header Upgrade, or run uvicorn with --http h11 or "
        "purgatory.uvicorn:ParkingProtocol",
    )


def _announced(scope: Scope) -> tuple[int, bool]:
    """Return Content-Length, or -1, and whether the client waits for 100 Continue."""
    # The last of each name: servers reject repeats of these.
    headers = {name: value.strip(b" \t") for name, value in scope["headers"]}
    expects_continue = headers.get(b"expect", b"").lower() == b"100-continue"
    length = headers.get(b"content-length")
    # A Transfer-Encoding overrides it.
    if length is None or b"transfer-encoding" in headers:
        return -1, expects_continue
    # A longer number is beyond every limit.
    is_number = length.isdigit() and len(length) < 16
    return int(length) if is_number else sys.maxsize, expects_continue


def body_too_large(limit: int) -> Problem:
    """Return the problem of a body of more than `limit` bytes."""
    return Problem(
        "body-too-large",
        f"the body is larger than {limit} bytes, the limit of this endpoint: send fewer items at "
        "once, or store the data elsewhere and send its address",
        # What is still on its way is not worth reading.
        headers={"Connection": "close"},
        limit=limit,
    )
