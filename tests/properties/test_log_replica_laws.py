"""The laws of followers and their replicas, against a log that loses, forgets and is emptied.

A cursor that any process has given out is good in every other: reading from it yields the key's
signals after it, each once and in order, or CursorExpiredError; never a part with a gap in it. No
wait sleeps through an acknowledged signal. And a cursor expires for a reason (see `_may_expire`):
a signal of its key after it was lost or removed, or else

- the log was emptied, or what the cursor counts was itself lost, whatever its key;
- the log is as it was before it was emptied, or entries are lost whose keys nobody knows any more;
- the process began, or was cut off, when the log had forgotten entries after the cursor already,
  and it had no wait on the key: it cannot know whether the key fired.

A lost signal may be skipped before a process that knew it has reported that: then the next cursor
expires all the same.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from purgatory import CursorExpiredError
from purgatory.errors import SignalsUnavailableError
from purgatory.limits import Limits
from purgatory.signals.log_replica import LogReplica
from purgatory.signals.model import EntryType, LogEntry
from purgatory.signals.redis.follower import Follower
from purgatory.testing import MockClock
from tests.properties.log_model import Content, LogModel

KEYS = [f"key {number}" for number in range(5)]
PROCESSES = 3

keys = st.sampled_from(KEYS)
numbers = st.integers(0, PROCESSES - 1)


@dataclass(eq=False)
class Client:
    """Reads a key, and continues from its cursor, in any process."""

    key: str
    cursor: str
    # Lost signals that it has not seen: it is told so, at the latest in the end.
    owed: set[bytes] = field(default_factory=set)
    # Where it waits, and after which position.
    process: Process | None = None
    position: int = 0


class Process:
    """One process: its follower and its waits."""

    def __init__(self, machine: LogMachine, log: LogModel) -> None:
        self.machine = machine
        limits = Limits(
            max_signals_per_key=log.per_key,
            max_signals=max(log.in_all, len(KEYS)),
            max_signal_bytes=10_000,
            max_value_bytes=10_000,
        )
        self.replica = LogReplica(clock=MockClock(), limits=limits)
        fake: Any = log
        self.follower = Follower(
            fake, self.replica, shards=1, has_key=lambda key: True, on_change=lambda: None
        )
        listener: Any = self
        self.follower.applier.listener = listener
        self.messages: list[bytes] = []
        self.highest = 0

    def waits(self) -> list[Client]:
        return [client for client in self.machine.clients if client.process is self]

    # What a follower calls

    def check(self, key: str) -> int:
        ended = [each for each in self.waits() if each.key == key and self.is_over(each)]
        for client in ended:
            self.machine.answer(client)
        return len(ended)

    def cancel(self, key: str) -> int:
        ended = [each for each in self.waits() if each.key == key]
        for client in ended:
            self.machine.begin_anew(client, self.head())
        return len(ended)

    def watched(self) -> list[str]:
        return sorted({client.key for client in self.waits()})

    def is_over(self, client: Client) -> bool:
        return self.replica.has_after(client.key, client.position, 1)

    def head(self) -> str:
        return self.replica.cursor(self.replica.head())


class LogMachine(RuleBasedStateMachine):
    """Processes that follow one log."""

    @initialize(
        per_key=st.integers(1, 4),
        in_all=st.integers(3, 12),
        page=st.integers(1, 4),
        count=st.integers(0, 12),
    )
    def start(self, per_key: int, in_all: int, page: int, count: int) -> None:
        self.runner = asyncio.Runner()
        self.log = LogModel(per_key=per_key, in_all=in_all, page=page)
        self.clients: list[Client] = []
        self.saved: list[Content] = []
        # Lost signals that a process knew: it reports them.
        self.known_lost: set[bytes] = set()
        self.log.add([(EntryType.FIRED, KEYS[index % 3], b"") for index in range(count)])
        self.processes = [Process(self, self.log) for _ in range(PROCESSES)]
        for number in range(PROCESSES):
            self.catch_up(number)

    def teardown(self) -> None:
        if hasattr(self, "runner"):
            try:
                self._settle()
                for client in self.clients:
                    for process in self.processes:
                        self._ask(client, process)
                self._settle()
                for client in self.clients:
                    for process in self.processes:
                        self._ask(client, process)
                    assert not client.owed & self.known_lost, "a loss was never said"
            finally:
                self.runner.close()

    # Rules: the log

    @rule(number=numbers, fired=st.lists(keys, min_size=1, max_size=4))
    def fire(self, number: int, fired: list[str]) -> None:
        """In one process; the others are sent a message."""
        self._append(number, [(EntryType.FIRED, key, b"") for key in fired])

    @rule(number=numbers, key=keys)
    def drop(self, number: int, key: str) -> None:
        """The key's history ends, and so do its waits."""
        self._append(number, [(EntryType.DROPPED, key, b"")])

    @rule(key=keys)
    def evict(self, key: str) -> None:
        """An owner has too much: an entry is removed, and older ones of others stay."""
        self.log.evict(key)

    @rule()
    def save(self) -> None:
        """A replica of the server has this, or its file."""
        self.saved.append(self.log.content.copy())

    @precondition(lambda self: self.saved)
    @rule(back=st.integers(0, 3))
    def lose_writes(self, back: int) -> None:
        """The server is as it was some time ago."""
        saved = self.saved[-1 - back % len(self.saved)]
        if self.log.content.lineage[: len(saved.lineage)] != saved.lineage:
            # What was lost meanwhile would return.
            return
        known = {entry.encoded for process in self.processes for entry in self._known_to(process)}
        self.log.restore(saved)
        gone = {entry.encoded for entry in self.log.gone[self.log.epoch]}
        self.known_lost |= known & gone

    @rule()
    def empty(self) -> None:
        """FLUSHALL."""
        self.log.empty()

    # Rules: processes

    @rule(number=numbers, is_dropped=st.booleans(), is_tapped=st.booleans())
    def deliver(self, number: int, is_dropped: bool, is_tapped: bool) -> None:
        """The next message arrives, or is lost."""
        process = self.processes[number]
        if not process.messages:
            return
        data = process.messages.pop(0)

        async def receive() -> None:
            if not is_tapped or not process.follower.applier.apply_message(data):
                await process.follower._handle("", data)

        if not is_dropped:
            self._run(process, receive())

    @rule(number=numbers)
    def catch_up(self, number: int) -> None:
        """The log is read; afterwards no wait has anything to end for."""
        process = self.processes[number]
        process.messages.clear()
        self._run(process, process.follower.catch_up())
        for client in process.waits():
            assert not process.is_over(client)
            assert self._next(client, process.head()) == [], "a wait sleeps through a signal"

    @rule(number=numbers)
    def restart(self, number: int) -> None:
        """A process that has just started; what only the old one knew to be lost is reported."""
        self._settle()
        old, new = self.processes[number], Process(self, self.log)
        for client in old.waits():
            client.process = None
        self.processes[number] = new
        self.catch_up(number)

    # Rules: clients

    @rule(number=numbers, key=keys)
    def begin_to_read(self, number: int, key: str) -> None:
        """From now on, as that process knows it."""
        self.clients.append(Client(key, self.processes[number].head()))

    @rule(which=st.integers(0, 20), number=numbers)
    def poll(self, which: int, number: int) -> None:
        """Ask any process."""
        if self.clients:
            self._ask(self.clients[which % len(self.clients)], self.processes[number])

    @rule(which=st.integers(0, 20), number=numbers)
    def park(self, which: int, number: int) -> None:
        """Wait in any process."""
        if self.clients:
            self._park(self.clients[which % len(self.clients)], self.processes[number])

    @rule(which=st.integers(0, 20))
    def expire(self, which: int) -> None:
        """A wait reaches its deadline."""
        waits = [client for client in self.clients if client.process is not None]
        if waits:
            self.answer(waits[which % len(waits)])

    @rule(
        number=numbers,
        key=keys,
        which=st.integers(0, 20),
        what=st.sampled_from(["fire", "park", "lose", "drop", "evict", "message"]),
    )
    def interrupt(self, number: int, key: str, which: int, what: str) -> None:
        """Something happens while the next reply of the log is under way."""
        actions: dict[str, Callable[[], None]] = {
            "fire": lambda: self._append_inside(number, [(EntryType.FIRED, key, b"")]),
            "drop": lambda: self._append_inside(number, [(EntryType.DROPPED, key, b"")]),
            "park": lambda: self.park(which, number),
            "evict": lambda: self.log.evict(key),
            "lose": lambda: self.lose_writes(which) if self.saved else None,
            "message": lambda: self._apply_next_message(number),
        }
        self.log.meanwhile = actions[what]

    # What they do

    def begin_anew(self, client: Client, cursor: str) -> None:
        """It was told that something is missing: it reads the state, and continues from there."""
        client.process = None
        client.cursor = cursor
        client.owed.clear()

    def answer(self, client: Client) -> None:
        """A wait ends, whether anything has fired or not."""
        process, client.process = client.process, None
        assert process is not None
        replica = process.replica
        position = client.position
        lost = replica.loss((client.key,), (position,))
        if lost is not None:
            assert self._may_expire(client, process), lost
            self.begin_anew(client, lost.head)
            return
        read = replica.read(client.key, position, 100)
        after = read[-1].offset if read else max(position, replica.head())
        cursor = replica.cursor(after)
        assert [signal.encoded for signal in read] == self._next(client, cursor)
        client.cursor = cursor

    def _ask(self, client: Client, process: Process) -> None:
        if self._park(client, process):
            self.answer(client)

    def _park(self, client: Client, process: Process) -> bool:
        """Begin to wait; True if it waits, and has not ended at once."""
        client.process = None
        expired = None
        try:
            position = process.replica.position(client.key, client.cursor)
        except CursorExpiredError as exc:
            expired = exc
        except SignalsUnavailableError:
            # Another process has given it, which has read what this one has not.
            return False
        if expired is not None:
            assert self._may_expire(client, process), expired
            self.begin_anew(client, expired.head)
            return False
        client.process, client.position = process, position
        if process.is_over(client):
            self.answer(client)
            return False
        return True

    def _append(self, number: int, items: list[tuple[EntryType, str, bytes]]) -> None:
        process = self.processes[number]

        async def append() -> None:
            self._append_inside(number, items)

        self._run(process, append())

    def _append_inside(self, number: int, items: list[tuple[EntryType, str, bytes]]) -> None:
        reply, added = self.log.add(items)
        own = [entry._replace(previous=0) for entry in added]
        self.processes[number].follower.applier.apply_own(reply.epoch, own)

    def _apply_next_message(self, number: int) -> None:
        process = self.processes[number]
        if process.messages and process.follower.applier.apply_message(process.messages[0]):
            del process.messages[0]

    def _run(self, process: Process, coroutine: Any) -> None:
        self.runner.run(coroutine)
        for epoch, entries in self.log.messages:
            for each in self.processes:
                each.messages.append(_message(epoch, entries))
        self.log.messages.clear()
        position = process.replica.head()
        assert position >= process.highest, "a position has decreased"
        process.highest = position

    def _settle(self) -> None:
        """All processes read the log, until nobody has anything to report."""
        self.log.meanwhile = None
        for _ in range(3):
            for number in range(PROCESSES):
                self.catch_up(number)

    # The laws

    def _covered(self, cursor: str) -> set[bytes]:
        """Return the signals before a cursor, and those that were lost before its epoch."""
        epoch, _, offset = cursor.partition("-")
        before = {entry.encoded for entry in self.log.gone[epoch]}
        branch = self.log.branches[epoch].values()
        return before | {entry.encoded for entry in branch if entry.offset <= int(offset)}

    def _next(self, client: Client, cursor: str) -> list[bytes]:
        """Return what a client is to be given between its cursor and the next."""
        new = self._covered(cursor) - self._covered(client.cursor)
        gone = {entry.encoded for entry in self.log.gone[cursor.partition("-")[0]]}
        fired = [
            entry.encoded
            for entry in self.log.appended
            if entry.key == client.key and entry.type is EntryType.FIRED and entry.encoded in new
        ]
        client.owed |= gone.intersection(fired)
        return [each for each in fired if each not in gone]

    def _may_expire(self, client: Client, process: Process) -> bool:
        replica, log = process.replica, self.log
        epoch, _, text = client.cursor.partition("-")
        offset = int(text)
        if not all(
            any(each.name == epoch for each in of) for of in (log.content.epochs, replica.epochs)
        ):
            return True
        later = [each.name for each in log.content.epochs].index(epoch) + 1
        if any(offset > each.start for each in log.content.epochs[later:]):
            return True
        if replica.position_of(offset, epoch) < replica.earliest("a key that never fired"):
            return True
        covered = self._covered(client.cursor)
        kept = {entry.encoded for entry in log.content.entries.values()}
        for branch in log.branches.values():
            for entry in branch.values():
                if entry.key != client.key:
                    continue
                if entry.type is EntryType.FIRED:
                    if entry.encoded not in covered and entry.encoded not in kept - log.removed:
                        return True
                elif log.branches[epoch].get(entry.offset) != entry or entry.offset > offset:
                    return True
        return False

    def _known_to(self, process: Process) -> list[LogEntry]:
        replica = process.replica
        branch = self.log.branches.get(replica.epoch, {}).values()
        known = [entry for entry in branch if entry.offset <= replica.applied]
        for offset, own in process.follower.applier._own.items():
            known += [self.log.branches[own.epoch][offset]]
        return [entry for entry in known if entry.type is EntryType.FIRED]


def _message(epoch: str, entries: list[LogEntry]) -> bytes:
    texts = [
        f"{entry.type}{entry.seq} 0 {entry.previous} {len(entry.key)} {entry.key}".encode()
        + entry.encoded
        for entry in entries
    ]
    body = b"".join(b"%d:%b" % (len(text), text) for text in texts)
    first = entries[0].offset if entries else 0
    return f"{epoch} {first} ".encode() + body


TestLogReplicas = LogMachine.TestCase


def test_what_was_removed_in_the_midst_before_a_later_epoch_is_told() -> None:
    """Also to a process that had read nothing of it before the server lost writes."""
    machine = LogMachine()
    machine.start(per_key=1, in_all=3, page=1, count=0)
    machine.begin_to_read(key=KEYS[0], number=0)
    machine.fire(fired=[KEYS[0], KEYS[1]], number=0)
    machine.evict(key=KEYS[0])
    machine.save()
    machine.lose_writes(back=0)
    machine.catch_up(number=1)
    machine.poll(number=1, which=0)
    machine.teardown()


def test_what_a_lost_drop_had_removed_is_not_missed() -> None:
    """A page is read without an entry, then the server loses the drop: the entry is back."""
    machine = LogMachine()
    machine.start(per_key=1, in_all=3, page=1, count=0)
    machine.begin_to_read(key=KEYS[0], number=0)
    machine.fire(fired=[KEYS[0], KEYS[1]], number=0)
    machine.save()
    machine.drop(key=KEYS[0], number=0)
    machine.park(number=1, which=0)
    machine.interrupt(key=KEYS[0], number=0, which=0, what="lose")
    machine.catch_up(number=1)
    machine.teardown()


def test_a_loss_of_an_epoch_that_was_never_read_here_is_told() -> None:
    """Although the key was dropped before the epochs that this process knows nothing of."""
    machine = LogMachine()
    machine.start(per_key=1, in_all=3, page=1, count=0)
    machine.begin_to_read(key=KEYS[0], number=0)
    machine.drop(key=KEYS[0], number=0)
    machine.save()
    machine.lose_writes(back=0)
    machine.fire(fired=[KEYS[0]], number=0)
    machine.lose_writes(back=0)
    machine.park(number=0, which=0)
    machine.fire(fired=[KEYS[0]], number=0)
    machine.teardown()
