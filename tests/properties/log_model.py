"""A log of signals as the server keeps it, with everything that can happen to one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from purgatory.signals.model import EntryType, Epoch, LogEntry
from purgatory.signals.redis.entry_codec import AppendReply, AppendRequest, EntryCodec
from purgatory.signals.redis.shard_log import KeyPage, LogState

# Of a key that the server does not know.
NO_RECORD = (0, 0, 0, "none-0")


@dataclass
class Content:
    """What the server has, as it is when it is saved and restored."""

    epochs: list[Epoch]
    head: int = 0
    trimmed: int = 0
    hole: int = 0
    holes: int = 0
    entries: dict[int, LogEntry] = field(default_factory=dict)
    # {key: (seq, last, lost, reported)}
    records: dict[str, tuple[int, int, int, str]] = field(default_factory=dict)
    # The names of all epochs that this has come from, also of those that are expired.
    lineage: list[str] = field(default_factory=list)

    def copy(self) -> Content:
        return Content(
            list(self.epochs),
            self.head,
            self.trimmed,
            self.hole,
            self.holes,
            dict(self.entries),
            dict(self.records),
            list(self.lineage),
        )

    def begin(self, epoch: Epoch, *, is_first: bool = False) -> None:
        self.epochs = [epoch] if is_first else [*self.epochs, epoch]
        self.lineage.append(epoch.name)


class LogModel:
    """The part of `log.lua` that followers see, as a `ShardLog`. `values` are never used twice."""

    def __init__(self, *, per_key: int, in_all: int, page: int) -> None:
        self.per_key, self.in_all, self.page = per_key, in_all, page
        self.codec = EntryCodec(max_value_bytes=64 * 1024)
        self._names = 0
        self._values = 0
        self.content = Content([])
        self.content.begin(self._epoch(0))
        # Of all times: {epoch: {offset: entry}}, also what was lost with it or removed.
        self.branches: dict[str, dict[int, LogEntry]] = {self.epoch: {}}
        # {epoch: the entries that were lost before it began}
        self.gone: dict[str, list[LogEntry]] = {self.epoch: []}
        self.appended: list[LogEntry] = []
        # The values that were removed at some time, because of age or number.
        self.removed: set[bytes] = set()
        self.messages: list[tuple[str, list[LogEntry]]] = []
        # Runs while a reply is under way.
        self.meanwhile: Callable[[], object] | None = None

    @property
    def epoch(self) -> str:
        return self.content.epochs[-1].name

    # What a follower calls

    async def read(self, after: int, limit: int) -> LogState:
        content = self.content
        entries = [entry for offset, entry in sorted(content.entries.items()) if offset > after]
        state = LogState(
            *(list(content.epochs), content.head, content.trimmed),
            *(content.hole, content.holes, 1),
            entries[: self.page],
        )
        self._interrupt()
        return state

    async def keys_after(self, cursor: int) -> KeyPage:
        lost = {key: record[2] for key, record in self.content.records.items()}
        self._interrupt()
        return KeyPage(0, 0, lost)

    async def last(self, keys: Sequence[str]) -> list[int]:
        found = [self.content.records.get(key, NO_RECORD)[1] for key in keys]
        self._interrupt()
        return found

    async def append(self, request: AppendRequest) -> AppendReply:
        reply, _ = self.add(request.items)
        return reply

    async def expire_all(self, oldest: str) -> Epoch:
        if self.content.epochs[0].name == oldest:
            before = self.epoch
            self.content.begin(self._epoch(self.content.head), is_first=True)
            self.branches[self.epoch] = dict(self.branches[before])
            self.gone[self.epoch] = self.gone[before]
            self.messages.append((self.epoch, []))
        return self.content.epochs[-1]

    # What happens to it

    def add(
        self, items: Sequence[tuple[EntryType, str, bytes]]
    ) -> tuple[AppendReply, list[LogEntry]]:
        content, added = self.content, []
        before = content.head
        for kind, key, value in items:
            seq, last, lost, reported = content.records.get(key, NO_RECORD)
            if kind is EntryType.LOST and _is_reported(reported, value.decode()):
                continue
            content.head += 1
            if kind is EntryType.FIRED:
                seq += 1
                self._values += 1
                encoded = b"%d" % self._values
            else:
                lost, encoded = content.head, b""
                if kind is EntryType.LOST:
                    reported = value.decode()
                if kind is EntryType.DROPPED:
                    self._remove([offset for offset, _ in self._of(key)])
            entry = LogEntry(content.head, kind, seq, 0, last, key, encoded)
            content.entries[content.head] = entry
            of_key = self._of(key)
            if len(of_key) > self.per_key:
                lost = max(lost, of_key[0][0])
                self._remove([of_key[0][0]])
            content.records[key] = seq, content.head, lost, reported
            added.append(entry)
            self.branches[self.epoch][entry.offset] = entry
            self.appended.append(entry)
        while len(content.entries) > self.in_all:
            oldest = min(content.entries)
            key = content.entries[oldest].key
            self._remove([oldest])
            seq, last, lost, reported = content.records[key]
            content.records[key] = seq, last, max(lost, oldest), reported
            content.trimmed = oldest
        if added:
            self.messages.append((self.epoch, added))
        return AppendReply(self.epoch, before, 0, [each.seq for each in added]), added

    def evict(self, key: str) -> None:
        """Remove the oldest entry of a key, as its owner has more than a fair part of the log."""
        of_key = self._of(key)
        if of_key:
            content, (offset, _) = self.content, of_key[0]
            seq, last, lost, reported = content.records[key]
            content.records[key] = seq, last, max(lost, offset), reported
            if last == offset:
                content.hole = max(content.hole, offset)
                content.holes += 1
            self._remove([offset])

    def restore(self, saved: Content) -> None:
        """Be as it was, after a restart: entries since then are lost."""
        self.content = saved.copy()
        self.content.begin(self._epoch(saved.head))
        branch = self.branches[saved.epochs[-1].name]
        kept = {offset: entry for offset, entry in branch.items() if offset <= saved.head}
        self._branch(kept)

    def empty(self) -> None:
        """Lose everything."""
        self.content = Content([], lineage=self.content.lineage)
        self.content.begin(self._epoch(0))
        self._branch({})

    def _branch(self, kept: dict[int, LogEntry]) -> None:
        self.branches[self.epoch] = kept
        values = {entry.encoded for entry in kept.values()}
        self.gone[self.epoch] = [each for each in self.appended if each.encoded not in values]
        self.messages.clear()

    def _epoch(self, start: int) -> Epoch:
        self._names += 1
        return Epoch(f"{self._names:012x}", start)

    def _of(self, key: str) -> list[tuple[int, LogEntry]]:
        return sorted(item for item in self.content.entries.items() if item[1].key == key)

    def _remove(self, offsets: Sequence[int]) -> None:
        for offset in offsets:
            self.removed.add(self.content.entries.pop(offset).encoded)

    def _interrupt(self) -> None:
        meanwhile, self.meanwhile = self.meanwhile, None
        if meanwhile is not None:
            meanwhile()


def _is_reported(reported: str, lost: str) -> bool:
    epoch, _, last = reported.partition("-")
    of, _, offset = lost.partition("-")
    return epoch == of and int(offset) <= int(last)
