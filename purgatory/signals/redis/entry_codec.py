"""Requests, replies and entries as the server has them; what comes from it is checked here.

Whoever may write to the server can be of another version, or no process of ours at all: what is
malformed is neither delivered to clients nor in the way of the entries behind it.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence
from hashlib import blake2b
from typing import Final, NamedTuple

from purgatory.errors import InvalidKeyError, SignalsConflictError, SignalsNotReadyError
from purgatory.json_value import decode_json
from purgatory.operations.watch_key import check_key
from purgatory.redis_server.script import netstrings
from purgatory.signals.model import EntryType, Epoch, Idempotency, LogEntry
from purgatory.turn_budget import TurnBudget

logger = logging.getLogger("purgatory.signals.redis")

TYPES: Final = {kind: kind.value.encode() for kind in EntryType}
_TYPE_OF: Final = {text: kind for kind, text in TYPES.items()}
# Numbers in Redis scripts are exact up to 2**53.
_HEAD: Final = re.compile(
    rb"([fdx])([0-9]{1,15}) ([0-9]{1,15}) ([0-9]{1,15}) ([0-9]{1,9})"
    rb"(?:@([0-9a-f]{12})?([0-9a-z]{50})?)? "
)
_MESSAGE: Final = re.compile(rb"([0-9a-f]{12}) ([0-9]{1,15}) ")
_EPOCH: Final = re.compile(r"([0-9a-f]{12}):([0-9]{1,15})")
# The last that can be shown as a date: the end of the year 9999.
_MAX_MS: Final = 253_402_300_799_999
_BYTES_OF_ONE: Final = 4 * 1024


class AppendRequest(NamedTuple):
    """Entries that are appended all or none."""

    items: Sequence[tuple[EntryType, str, bytes]]
    unless_after: int | None = None
    """An offset: refused if the first key has an entry after it."""
    idempotency: Idempotency | None = None
    owner: str | None = None
    """A short name of the owner: owners share the log fairly; all without a name are one."""
    traceparent: str | None = None
    """The trace context of the entries."""

    def entries(self, reply: AppendReply) -> list[LogEntry]:
        """Return what a reply says was appended: nothing if that is of an earlier request."""
        if reply.is_repeat:
            return []
        numbered = enumerate(zip(self.items, reply.seqs, strict=True), start=reply.before + 1)
        return [
            LogEntry(
                *(offset, kind, seq, reply.at_ms, 0, key, encoded), self.owner, self.traceparent
            )
            for offset, ((kind, key, encoded), seq) in numbered
        ]

    @property
    def weight(self) -> int:
        """How long the server needs for it, about, by the number and by the size of entries."""
        size = sum(len(value) for _, _, value in self.items)
        return max(len(self.items), size // _BYTES_OF_ONE)


class AppendReply(NamedTuple):
    """The result of one request."""

    epoch: str
    before: int
    """The offset just before the first entry."""
    at_ms: int
    seqs: list[int]
    response: bytes | None = None
    """The response of an earlier request of the same name, if it was stored."""
    is_repeat: bool = False


class EntryCodec:
    """Decodes the entries of one log."""

    def __init__(self, max_value_bytes: int) -> None:
        """Take values of up to that many bytes."""
        self._max_value_bytes = max_value_bytes

    def entry(self, offset: int, text: bytes) -> LogEntry:
        """Return the entry that `text` is; raise ValueError if it is malformed."""
        match = _HEAD.match(text)
        if match is None:
            raise ValueError("it has no head of an entry")
        kind, seq, at, before, size, owner, trace = match.groups()
        key_start = match.end()
        key_end = key_start + int(size)
        key = text[key_start:key_end].decode()
        check_key(key)
        at_ms, previous = int(at), int(before)
        if at_ms > _MAX_MS or previous >= offset or key_end > len(text):
            raise ValueError("a number in its head is out of bounds")
        encoded = text[key_end:]
        if kind == b"f" and encoded != b"null":
            if len(encoded) > self._max_value_bytes:
                raise ValueError(
                    f"its value has {len(encoded)} bytes, more than max_value_bytes of the Limits "
                    f"here, {self._max_value_bytes}"
                )
            decode_json(encoded)
        return LogEntry(
            offset,
            _TYPE_OF[kind],
            int(seq),
            at_ms,
            previous,
            key,
            encoded,
            None if owner is None else owner.decode(),
            None if trace is None else _traceparent(trace.decode()),
        )

    async def page(self, texts: Sequence[bytes]) -> list[LogEntry]:
        """Return entries that were read from a log, each behind its offset and a space.

        One that is malformed, which is logged, is an entry that expires the cursors of its key, so
        that no reader misses it in silence; if there is no key, it is one without any effect.
        """
        entries: list[LogEntry] = []
        faults: list[str] = []
        budget = TurnBudget(for_all=True)
        for each in texts:
            number, _, text = each.partition(b" ")
            offset = int(number)
            try:
                entries.append(self.entry(offset, text))
            except ValueError as exc:
                entries.append(_unreadable(offset, text))
                faults.append(f"the one at {offset}: {exc}")
            await budget.yield_if_spent()
        if faults:
            logger.error(
                "%d entries of the log of signals are malformed, and the cursors of their keys are "
                "expired here; %s",
                len(faults),
                faults[0],
                extra={"action": "signals-malformed"},
            )
        return entries


def split_message(message: bytes) -> tuple[str, int, list[bytes]]:
    """Return epoch, first offset and texts of the entries of a log's message; raise ValueError."""
    match = _MESSAGE.match(message)
    if match is None:
        raise ValueError("it is no message of a log")
    entries = message[match.end() :]
    size, _, entry = entries.partition(b":")
    # Most messages have one.
    texts = [entry] if size == b"%d" % len(entry) else list(netstrings(entries))
    return match[1].decode(), int(match[2]), texts


def epochs_of(text: bytes) -> list[Epoch]:
    """Return the epochs of a log, the oldest first; raise ValueError."""
    found = [_EPOCH.fullmatch(each) for each in text.decode().split(",")]
    epochs = [Epoch(match[1], int(match[2])) for match in found if match is not None]
    if len(epochs) != len(found):
        raise ValueError(f"the epochs of the log are {text[:64]!r}")
    return epochs


def _traceparent(digits: str) -> str:
    return f"00-{digits[:32]}-{digits[32:48]}-{digits[48:]}"


def _unreadable(offset: int, text: bytes) -> LogEntry:
    match = _HEAD.match(text)
    key = ""
    if match is not None:
        key = text[match.end() : match.end() + int(match[5])].decode(errors="replace")
        try:
            check_key(key)
        except InvalidKeyError:
            key = ""
    kind = EntryType.LOST if key else EntryType.UNREADABLE
    return LogEntry(offset, kind, 0, 0, 0, key, b"")


def short_name(owner: str) -> str:
    """Return the name of an owner that its entries have."""
    return blake2b(text_bytes(owner), digest_size=6).hexdigest()


def text_bytes(text: str) -> bytes:
    """Return a key or a name as Redis has it, also with what is no UTF-8."""
    # Keys may contain lone surrogates, which a job's payload may have had escaped.
    return text.encode("utf-8", "surrogatepass")


def append_arguments(requests: Sequence[AppendRequest]) -> list[bytes]:
    """Return the arguments of the script."""
    arguments: list[bytes] = []
    for request in requests:
        name, after = request.idempotency, request.unless_after
        arguments += (b"",) if name is None else name_arguments(name)
        arguments += (
            _share_of(request.owner, request.traceparent),
            b"" if after is None else b"%d" % after,
            b"%d" % len(request.items),
        )
        for kind, key, value in request.items:
            arguments += (TYPES[kind], text_bytes(key), value)
    return arguments


def name_arguments(idempotency: Idempotency) -> tuple[bytes, bytes, bytes]:
    """Return the name of a request, its owner and its fingerprint, as the script takes them."""
    owner = short_name(idempotency.owner)
    return idempotency.hash.encode(), owner.encode(), idempotency.fingerprint.encode()


def append_replies(reply: bytes) -> list[AppendReply | SignalsConflictError]:
    """Return the result of each request of a round trip."""
    try:
        epoch, *results = netstrings(reply)
        return [_append_reply(epoch.decode(), result) for result in results]
    except ValueError as exc:
        # A part of it is what a process has kept there under the name of a request.
        raise SignalsNotReadyError(
            f"Redis has something else where the log of signals is ({exc}): nothing but this "
            "library may write to the keys of its prefix"
        ) from exc


def _append_reply(epoch: str, result: bytes) -> AppendReply | SignalsConflictError:
    kind, _, rest = result.partition(b" ")
    if kind in (b"ok", b"known"):
        is_repeat = kind == b"known"
        if is_repeat:
            first, rest = rest.split(b" ", 1)
            if first == b"=":
                return AppendReply(epoch, 0, 0, [], rest, is_repeat=True)
            epoch = first.decode()
        before, at_ms, numbers, _ = rest.split(b" ")
        seqs = [int(seq) for seq in numbers.split(b",") if seq]
        return AppendReply(epoch, int(before), int(at_ms), seqs, is_repeat=is_repeat)
    if kind == b"reused":
        return name_reused()
    return SignalsConflictError("the key has fired since then", is_name_reused=False)


def name_reused() -> SignalsConflictError:
    """Return the error of a name that is another request's."""
    return SignalsConflictError(
        "the name of this request was that of another one", is_name_reused=True
    )


def _share_of(owner: str | None, traceparent: str | None) -> bytes:
    """Return the owner and the trace context as the head of an entry has them."""
    text = owner or ""
    if traceparent is not None:
        # Without its version and dashes.
        _, trace_id, span_id, flags = traceparent.split("-")
        text += f"{trace_id}{span_id}{flags}"
    return text.encode()
