"""The wait of a parked request, its response, and all parked requests of a router."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from json.encoder import encode_basestring_ascii as _json_string
from typing import Any, ClassVar, Final

from purgatory.errors import PurgatoryClosedError
from purgatory.fastapi.http.errors import problem_of_exception
from purgatory.fastapi.http.requests import RawRequest
from purgatory.fastapi.http.responses import (
    CLOSE,
    Problem,
    RawResponse,
    draining_problem,
    poll_after_drain_ms,
)
from purgatory.fastapi.routing.endpoints import Connection, EndpointContext
from purgatory.fastapi.watch.request_parser import WatchRequest, WatchTerms
from purgatory.fastapi.watch.settings import ClientOf, PerClientLimit, WaitSettings
from purgatory.outcome import Status
from purgatory.signals import MemorySignals, Signal, WaitOperation

Keys = tuple[str, ...]
Positions = tuple[int, ...]

# Bytes of a signal besides its value, about: numbers, cursor and time.
_SIGNAL_BYTES: Final = 120
_SINGLE: Final = b'{"key":%b,"signals":%b,"cursor":"%b","reason":"%b","more":%b,"poll_after_ms":%d}'
_IS_MORE: Final = (b"false", b"true")
_REASONS: Final = {status: status.encode() for status in Status}


class WatchResponses:
    """Encodes the responses of one purgatory.

    Values are encoded already, so that a body is joined from bytes; and the last response is
    cached, because the waiters that one signal wakes nearly always get the same one.

    A response has as many signals as fit into `max_bytes`, and at least one if there is any: a
    small request cannot take the memory of a whole history. The next one continues after them.
    """

    def __init__(self, signals: MemorySignals, max_bytes: int) -> None:
        """Respond with the signals in `signals`, up to `max_bytes` of them."""
        self._signals = signals
        self._max_bytes = max_bytes
        self._last_question: tuple[object, ...] = ()
        self._last_response = RawResponse.empty(204)
        # The second that was encoded last, and its text.
        self._second = 0
        self._second_text = b"1970-01-01T00:00:00"

    def response(
        self, keys: Keys, positions: Positions, terms: WatchTerms, status: Status
    ) -> RawResponse:
        """Return the response to a wait that ended with `status`; each key has a position.

        Raises CursorExpiredError if signals after a position were lost, or are no longer kept.
        """
        if status is Status.OUTDATED:
            for key, position in zip(keys, positions, strict=True):
                self._signals.position(key, self._signals.cursor(position))
        if terms.is_plain and status is not Status.DRAINED:
            # Plain waits differ at most in these.
            question = (keys, positions, terms.limit, status, self._signals.head())
            if question != self._last_question:
                self._last_response = self._single(keys[0], positions[0], terms, status, 0, b"")
                self._last_question = question
            return self._last_response
        lines = b""
        if terms.applied:
            lines = b"preference-applied: %b\r\n" % ", ".join(terms.applied).encode()
        poll_after_ms = 0
        if status is Status.DRAINED:
            poll_after_ms = poll_after_drain_ms()
            lines += CLOSE
        if terms.is_single:
            return self._single(keys[0], positions[0], terms, status, poll_after_ms, lines)
        where = zip(keys, positions, strict=True)
        return self._several(where, terms, status, poll_after_ms, lines)

    def _single(
        self,
        key: str,
        position: int,
        terms: WatchTerms,
        status: Status,
        poll_after_ms: int,
        lines: bytes,
    ) -> RawResponse:
        signals, more, cursor = self._read(key, position, terms.limit, status)
        if len(signals) > 1 and self._fit(signals, self._max_bytes, 1) < 0:
            more, cursor = True, self._cursor(signals[-1].offset)
        lines += b'etag: "%b"\r\n' % cursor
        if not signals and terms.is_conditional and status is Status.EXPIRED:
            return RawResponse.empty(304, lines)
        if not signals and terms.is_minimal:
            return RawResponse.empty(204, b"%bpurgatory-cursor: %b\r\n" % (lines, cursor))
        body = _SINGLE % (
            _json_string(key).encode(),
            self._encoded(signals),
            cursor,
            _REASONS[status],
            _IS_MORE[more],
            poll_after_ms,
        )
        return RawResponse.from_json(200, body, lines)

    def _several(
        self,
        where: Iterable[tuple[str, int]],
        terms: WatchTerms,
        status: Status,
        poll_after_ms: int,
        lines: bytes,
    ) -> RawResponse:
        entries: list[bytes] = []
        cursors: dict[str, bytes] = {}
        room = self._max_bytes
        for key, position in where:
            signals, more, cursors[key] = self._read(key, position, terms.limit, status)
            if signals:
                room = self._fit(signals, room, 0 if entries else 1)
                if room < 0:
                    more = True
                    cursors[key] = self._cursor(signals[-1].offset if signals else position)
                entries.append(
                    b'%b:{"signals":%b,"cursor":"%b","more":%b}'
                    % (
                        _json_string(key).encode(),
                        self._encoded(signals),
                        cursors[key],
                        _IS_MORE[more],
                    )
                )
        if not entries and terms.is_minimal:
            cursor = max(cursors.values(), key=len)
            return RawResponse.empty(204, b"%bpurgatory-cursor: %b\r\n" % (lines, cursor))
        body = b'{"keys":{%b},"cursors":{%b},"reason":"%b","poll_after_ms":%d}' % (
            b",".join(entries),
            b",".join(
                b'%b:"%b"' % (_json_string(key).encode(), cursor) for key, cursor in cursors.items()
            ),
            _REASONS[status],
            poll_after_ms,
        )
        return RawResponse.from_json(200, body, lines)

    def _read(
        self, key: str, position: int, limit: int, status: Status
    ) -> tuple[list[Signal], bool, bytes]:
        """Return the signals of a key, whether there are more, and the next cursor."""
        if status is Status.DRAINED and position < self._signals.earliest(key):
            # The next wait, in whichever process, responds 410.
            return [], False, self._cursor(position)
        signals = self._signals.read(key, position, limit + 1)
        if len(signals) > limit:
            signals.pop()
            return signals, True, self._cursor(signals[-1].offset)
        # A wait may be ahead of the head, where another process was faster.
        return signals, False, self._cursor(max(position, self._signals.head_of(key)))

    def _fit(self, signals: list[Signal], room: int, least: int) -> int:
        """Remove the signals that are beyond `room` bytes, except the first `least` ones.

        Returns the bytes that are left; negative iff any signal was removed.
        """
        for index, signal in enumerate(signals):
            room -= len(signal.encoded) + _SIGNAL_BYTES
            if room < 0 and index >= least:
                del signals[index:]
                return -1
        return max(room, 0)

    def _encoded(self, signals: list[Signal]) -> bytes:
        return b"[%b]" % b",".join([self.signal_json(signal) for signal in signals])

    def signal_json(self, signal: Signal) -> bytes:
        """Return one signal as JSON."""
        return b'{"seq":%d,"cursor":"%b","at":"%b","value":%b}' % (
            signal.seq,
            self._cursor(signal.offset),
            self._timestamp(signal.at_ms),
            signal.encoded,
        )

    def _cursor(self, position: int) -> bytes:
        return self._signals.cursor(position).encode()

    def _timestamp(self, at_ms: int) -> bytes:
        """Return UTC milliseconds as RFC 3339."""
        second, ms = divmod(at_ms, 1000)
        if second != self._second:
            self._second = second
            self._second_text = f"{datetime.fromtimestamp(second, UTC):%Y-%m-%dT%H:%M:%S}".encode()
        return b"%b.%03dZ" % (self._second_text, ms)


logger = logging.getLogger("purgatory.fastapi")


class ParkedRequest(WaitOperation):
    """The wait of a request, which responds on its connection when it ends.

    Call `abandon` when the client leaves, and `run` to end the wait early, as expired.
    """

    kind: ClassVar[str] = "watch"

    # No more than this: there is one per client, and its memory is the cost of parking.
    # The connection itself: a bound method of it would be one more object for each request.
    __slots__ = ("_connection", "_registry", "counted", "terms", "wait_id")

    wait_id: str | None
    """The client's name for this wait, if it gave one."""
    counted: str
    """The key of the client that it is counted for; empty if none is."""

    def __init__(
        self, request: WatchRequest, registry: WaitRegistry, connection: Connection
    ) -> None:
        """Prepare to wait as `request` says, in `registry`, and to respond on `connection`."""
        purgatory = registry.purgatory
        keys, positions, self.terms, self.wait_id = request
        delay_ms = purgatory.delay_ms(self.terms.timeout)
        condition = self.terms.condition
        WaitOperation.__init__(self, delay_ms, purgatory.signals, keys, positions, condition)
        self._registry = registry
        self._connection = connection
        self.counted = ""
        # Shared by all of a server: a copy for each would be a twentieth of its memory.
        self._parked_in = connection.context

    @property
    def client(self) -> str | None:
        """The client as far as it is known: its identity, or the address of its connection.

        The identity is kept only where it is needed, for a Wait-Id or a limit per client.
        """
        owner = (self.wait_id or "").rpartition("/")[0]
        return self.counted[1:] or owner or self.address

    @property
    def address(self) -> str | None:
        """The address of the client's connection, or of the proxy's; None if unknown."""
        return self._connection.address

    def on_complete(self) -> None:
        """Respond, unless the client has left or was refused."""
        if self.wait_id is not None or self.counted:
            self._registry.forget(self)
        if not self.is_abandoned:
            self._respond()

    def _respond(self) -> None:
        registry = self._registry
        keys, positions = self.watched_keys, self.positions
        try:
            response = registry.responses.response(keys, positions, self.terms, self.status)
        except Exception as exc:
            # Signals are lost, or it is a fault of ours: a 500 instead of no response.
            response = registry.failed(keys, exc)
        self._connection.respond(response)

    def refuse(self, response: RawResponse) -> bool:
        """End the wait with an error; return True iff it was pending."""
        return self._end_with(self._connection.respond, response)

    def _end_with(self, send: Callable[[Any], object], last: object) -> bool:
        """End the wait, and send `last` in place of a response; return True iff it was pending."""
        if self._parked_in is not None:
            return bool(self._in_own_context(self._end_with, send, last))
        if not self.abandon():
            return False
        send(last)
        return True


class WaitRegistry:
    """Parks requests in a purgatory, and finds those with a Wait-Id.

    ASGI and the uvicorn protocol share one, so that a wait is the same in both.
    """

    def __init__(
        self, context: EndpointContext, settings: WaitSettings, client_of: ClientOf | None = None
    ) -> None:
        """Park requests in the purgatory of `context`.

        `client_of` names clients, also those of endpoints of the application: they have one limit.
        """
        self.context = context
        self.purgatory = purgatory = context.purgatory
        self.settings = settings
        self.responses = WatchResponses(purgatory.signals, settings.max_response_bytes)
        # {wait id: the request that is parked under it, and since when}
        self._named: dict[str, tuple[ParkedRequest, int]] = {}
        shared = purgatory.shared_signals
        if shared is not None:
            shared.peers.answers[f"cancel-wait {context.prefix}"] = self._cancel_here
            shared.peers.answers[f"supersede-wait {context.prefix}"] = self._supersede_here
        self.clients = PerClientLimit(settings.max_parked_per_client, purgatory, client_of)
        self._has_warned_of_closed = False

    def client(self, raw: RawRequest) -> str:
        """Return the key of the client that `raw` is counted for; empty if none are counted."""
        return self.clients.key_of_raw(raw) if self.clients.is_active else ""

    def park(self, parked: ParkedRequest, client: str = "") -> None:
        """Have `parked` responded to, now or later; raise Problem or PurgatoryError if refused.

        Call its `abandon` when the client leaves. It is counted for `client`, unless that is empty.
        """
        purgatory = self.purgatory
        if purgatory.is_draining:
            raise draining_problem()
        if not purgatory.is_open:
            self._warn_of_closed()
            raise PurgatoryClosedError
        if purgatory.shared_signals is not None:
            purgatory.shared_signals.require_loaded()
        if parked.delay_ms == 0:
            # It polls, and does not park.
            if not parked.try_complete():
                parked.run()
        else:
            if client:
                self.clients.check(client)
            if not purgatory.park_operation(parked, parked.watched_keys) and client:
                parked.counted = self.clients.enter(client)
        wait_id = parked.wait_id
        if wait_id is not None:
            self._name(parked, wait_id)

    def failed(self, keys: tuple[str, ...], error: Exception) -> RawResponse:
        """Return the response to a wait that failed; if that is a fault of ours, log it."""
        path = self.path_of(keys)
        method = "GET" if len(keys) == 1 else "POST"
        return problem_of_exception(error, method, path).response(self.context.prefix, path)

    def path_of(self, keys: tuple[str, ...]) -> str:
        """Return the path of a request that waits for `keys`, decoded."""
        path = f"{self.context.prefix}/watch"
        return f"{path}/{keys[0]}" if len(keys) == 1 else path

    def forget(self, parked: ParkedRequest) -> None:
        """Forget the Wait-Id of a wait that has ended, and count it for its client no longer."""
        wait_id = parked.wait_id
        if wait_id is not None and wait_id in self._named and self._named[wait_id][0] is parked:
            del self._named[wait_id]
        self.clients.leave(parked.counted)

    async def cancel(self, wait_id: str) -> None:
        """End the wait under `wait_id` with reason "cancelled"; raise Problem if there is none.

        In all processes that share signals; SignalsUnavailableError if these cannot be asked.
        """
        count = self._cancel_here(wait_id)
        shared = self.purgatory.shared_signals
        if shared is not None and not count:
            question = f"cancel-wait {self.context.prefix}"
            count = sum(await shared.peers.ask(question, wait_id, int))
        if not count:
            raise Problem("unknown-wait", f"no request is parked under Wait-Id {_id(wait_id)}")

    def _warn_of_closed(self) -> None:
        # Once: clients try again. They are not told how the application is made.
        if self._has_warned_of_closed:
            return
        self._has_warned_of_closed = True
        logger.warning(
            "a wait was refused, as purgatory %r is not open: its lifespan is over, or did not "
            "run. Mounted applications get no lifespan: install it in the outermost application, "
            "or use it inside `async with` in a lifespan of your own",
            self.purgatory.name,
            extra={"action": "not-open"},
        )

    def _name(self, parked: ParkedRequest, wait_id: str) -> None:
        # The newer request supersedes the older one even if it ended at once.
        older = self._named.pop(wait_id, None)
        at_ms = self.purgatory.clock.wall_ms()
        if parked.status is Status.PENDING:
            self._named[wait_id] = parked, at_ms
        if older is not None:
            older[0].refuse(self._superseded(wait_id))
        shared = self.purgatory.shared_signals
        if shared is not None:
            shared.peers.tell(f"supersede-wait {self.context.prefix}", f"{at_ms} {wait_id}")

    def _cancel_here(self, wait_id: str) -> int:
        parked = self._named.pop(wait_id, None)
        return 1 if parked is not None and parked[0].cancel() else 0

    def _supersede_here(self, argument: str) -> int:
        at_ms, _, wait_id = argument.partition(" ")
        older = self._named.get(wait_id)
        # By the clocks of the processes: a client asks again later than by what they differ.
        if older is None or not at_ms.isdecimal() or older[1] >= int(at_ms):
            return 0
        del self._named[wait_id]
        return 1 if older[0].refuse(self._superseded(wait_id)) else 0

    def _superseded(self, name: str) -> RawResponse:
        wait_id = _id(name)
        problem = Problem(
            "superseded", f"a newer request was parked under Wait-Id {wait_id}, and waits instead"
        )
        return problem.response(self.context.prefix, f"{self.context.prefix}/waits/{wait_id}")


def _id(name: str) -> str:
    """Return the Wait-Id of a wait's name, without the owner."""
    return name.rpartition("/")[2]
