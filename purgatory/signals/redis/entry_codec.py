"""Entries of a log as the server has them; what comes from it is checked here, on arrival.

Whoever may write to the server can be of another version, or no process of ours at all: what is
malformed is neither delivered to clients nor in the way of the entries behind it.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence
from typing import Final

from purgatory.errors import InvalidKeyError
from purgatory.json_value import decode_json
from purgatory.operations.watch_key import check_key
from purgatory.redis_server.script import netstrings
from purgatory.signals.model import EntryType, Epoch, LogEntry
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

    def message(self, message: bytes, most: int | None = None) -> tuple[str, list[LogEntry]]:
        """Return epoch and entries of a log's message, or none if there are more than `most`.

        Raises ValueError.
        """
        epoch, first, texts = split_message(message, most)
        return epoch, [self.entry(first + index, text) for index, text in enumerate(texts)]

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


def split_message(message: bytes, most: int | None = None) -> tuple[str, int, list[bytes]]:
    """Return epoch, first offset and texts of the entries of a log's message.

    No texts if there are more than `most`. Raises ValueError.
    """
    match = _MESSAGE.match(message)
    if match is None:
        raise ValueError("it is no message of a log")
    epoch, first = match[1].decode(), int(match[2])
    entries = message[match.end() :]
    size, _, entry = entries.partition(b":")
    # Most messages have one.
    if size == b"%d" % len(entry):
        return epoch, first, [entry]
    texts: list[bytes] = []
    for text in netstrings(entries):
        if len(texts) == most:
            return epoch, first, []
        texts.append(text)
    return epoch, first, texts


def epochs_of(text: bytes) -> list[Epoch]:
    """Return the epochs of a log, the oldest first; raise ValueError."""
    found = [_EPOCH.fullmatch(each) for each in text.decode().split(",")]
    epochs = [Epoch(match[1], int(match[2])) for match in found if match is not None]
    if len(epochs) != len(found):
        raise ValueError(f"the epochs of the log are {text[:64]!r}")
    return epochs


def share_of(owner: str | None, traceparent: str | None) -> bytes:
    """Return the owner and the trace context as the head of an entry has them."""
    text = owner or ""
    if traceparent is not None:
        # Without its version and dashes.
        _, trace_id, span_id, flags = traceparent.split("-")
        text += f"{trace_id}{span_id}{flags}"
    return text.encode()


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
