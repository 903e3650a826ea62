"""The relay of an outbox: what it fires, when, and in which order; on an outbox in memory."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Sequence

import pytest

from purgatory.errors import PurgatoryClosedError, SignalsUnavailableError
from purgatory.jobs import StoreUnavailableError, outbox_relay
from purgatory.jobs.outbox_relay import POLL_S, TAKEOVER_MS, OutboxRelay
from purgatory.jobs.stores.outbox import StoredFire
from purgatory.testing import AutojumpEventLoop
from tests.unit.jobs.worker.memory_outbox import Outbox
from tests.unit.jobs.worker.runs import now_ms


class Relayed:
    """A relay on an outbox, and what it has fired: numbers, and when by the wall clock."""

    def __init__(self, *, is_shared: bool = False) -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, AutojumpEventLoop)
        self.outbox = Outbox()
        self.fired: list[int] = []
        self.at_ms: list[int] = []
        self.cancelled: list[Sequence[str]] = []
        self.errors: list[Exception] = []
        self.relay = OutboxRelay(
            self.outbox,
            origin="here",
            fire_all=self._fire_all,
            is_shared=is_shared,
            on_cancelled=self._on_cancelled,
            clock=loop.clock,
        )

    @property
    def left(self) -> list[int]:
        return [fire.number for fire in self.outbox.stored]

    async def commit(self, *keys: str, pause_s: float = 0.001) -> None:
        """Store own fires, have the relay look, and give it time."""
        self.outbox.store(*keys)
        self.relay.wake()
        await asyncio.sleep(pause_s)

    async def _fire_all(self, fires: Sequence[StoredFire]) -> None:
        if self.errors:
            raise self.errors.pop()
        self.fired += [fire.number for fire in fires]
        self.at_ms += [now_ms()] * len(fires)

    async def _on_cancelled(self, job_ids: Sequence[str]) -> None:
        self.cancelled.append(job_ids)


def actions(caplog: pytest.LogCaptureFixture) -> list[str]:
    """What the log names, without the event loop's own."""
    return [record.action for record in caplog.records if hasattr(record, "action")]


def is_running() -> bool:
    return "purgatory-outbox" in {task.get_name() for task in asyncio.all_tasks()}


@pytest.fixture
async def here() -> AsyncIterator[Relayed]:
    """A relay that has looked once; signals are in memory."""
    here = Relayed()
    here.relay.start()
    await asyncio.sleep(0.001)
    yield here
    await here.relay.stop()


@pytest.fixture
async def shared() -> AsyncIterator[Relayed]:
    """The same where signals are shared."""
    shared = Relayed(is_shared=True)
    shared.relay.start()
    await asyncio.sleep(0.001)
    yield shared
    await shared.relay.stop()


@pytest.fixture(autouse=True)
def all_levels(caplog: pytest.LogCaptureFixture) -> None:
    """Have the log in full."""
    caplog.set_level(logging.INFO, "purgatory.jobs")


async def test_own_fires_follow_their_commit_at_once(here: Relayed) -> None:
    """In order, and however many there are; each once."""
    began_ms = now_ms()
    await here.commit(*["k", "l"] * outbox_relay.BATCH)
    assert here.fired == list(range(1, 2 * outbox_relay.BATCH + 1))
    assert here.at_ms[-1] == began_ms
    assert here.left == []
    await here.commit("k")
    assert here.fired[-1] == 2 * outbox_relay.BATCH + 1
    await asyncio.sleep(60)
    assert len(here.fired) == 2 * outbox_relay.BATCH + 1


async def test_it_asks_no_more_often_than_it_needs_to(here: Relayed) -> None:
    """One request for own fires, one for those of others, at each poll; a commit asks for own."""
    here.outbox.reads.clear()
    await asyncio.sleep(3 * POLL_S)
    assert here.outbox.reads == [True, False] * 3
    here.outbox.reads.clear()
    await here.commit("k")
    assert here.outbox.reads == [True]
    assert here.outbox.takes == [[1]]
    await asyncio.sleep(POLL_S)
    assert here.outbox.reads == [True, True, False]


async def test_own_fires_whose_commit_nobody_announced(here: Relayed) -> None:
    """They are found all the same: with the next poll."""
    here.outbox.store("k")
    await asyncio.sleep(POLL_S)
    assert here.fired == [1]


async def test_fires_of_another_process_are_its_own(here: Relayed) -> None:
    """Until it seems to have ended; then they are fired here, and that is said."""
    began_ms = now_ms()
    here.outbox.store("a", "b", origin="there")
    await asyncio.sleep(TAKEOVER_MS / 1000)
    assert here.fired == []
    await asyncio.sleep(3 * POLL_S)
    assert here.fired == [1, 2]
    assert TAKEOVER_MS <= here.at_ms[0] - began_ms <= TAKEOVER_MS + 2 * POLL_S * 1000


async def test_fires_are_left_behind_after_a_time(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """From when they were seen first, and not before; the next of that process wait no longer."""
    monkeypatch.setattr(outbox_relay, "POLL_S", TAKEOVER_MS / 2000)
    here = Relayed()
    here.outbox.store("a", "b", origin="there")
    here.relay.start()
    await asyncio.sleep(TAKEOVER_MS / 1000 - 0.001)
    assert here.fired == [] and actions(caplog) == []
    await asyncio.sleep(0.002)
    assert here.fired == [1, 2]
    assert actions(caplog) == ["outbox-takeover"]
    assert "2 fires of processes that ended" in caplog.text
    here.outbox.store("c", origin="there")
    here.outbox.store("d", origin="alive")
    await asyncio.sleep(TAKEOVER_MS / 2000)
    assert here.fired == [1, 2, 3]
    # Alive, it has fired its own.
    here.outbox.stored.clear()
    await asyncio.sleep(60)
    here.outbox.store("e", origin="alive")
    await asyncio.sleep(TAKEOVER_MS / 1000 - 0.001)
    assert here.fired == [1, 2, 3]
    await here.relay.stop()


async def test_own_fires_are_no_takeover(here: Relayed, caplog: pytest.LogCaptureFixture) -> None:
    """Nothing is said about them."""
    await here.commit("k")
    await asyncio.sleep(60)
    assert here.fired == [1] and actions(caplog) == []


async def test_many_fires_that_were_left_behind(here: Relayed) -> None:
    """All of them are fired in one turn; and the living are read once in each, however many."""
    here.outbox.store(*["k"] * (2 * outbox_relay.BATCH), origin="ended")
    await asyncio.sleep(4 * POLL_S)
    assert here.fired == list(range(1, 2 * outbox_relay.BATCH + 1))
    assert len(set(here.at_ms)) == 1
    here.outbox.store(*["k"] * (2 * outbox_relay.BATCH), origin="alive")
    here.outbox.reads.clear()
    await asyncio.sleep(POLL_S)
    assert here.outbox.reads == [True, False]


async def test_a_locked_key_holds_up_no_other(here: Relayed) -> None:
    """Later fires on it wait, too, and are not asked for in the same turn; then all follow."""
    here.outbox.locked = {"k"}
    keys = ["k"] * outbox_relay.BATCH + ["l", "k", "l"]
    await here.commit(*keys)
    end = outbox_relay.BATCH
    assert here.fired == [end + 1, end + 3]
    assert here.outbox.takes == [list(range(1, end + 1)), [end + 1, end + 3]]
    here.outbox.locked = set()
    await asyncio.sleep(POLL_S)
    assert here.fired == [end + 1, end + 3, *range(1, end + 1), end + 2]
    assert here.left == []


async def test_what_is_locked_is_asked_for_less_and_less_often(
    here: Relayed, caplog: pytest.LogCaptureFixture
) -> None:
    """From 50 ms to two seconds; after about two seconds it is said, once."""
    here.outbox.locked = {"k"}
    await here.commit("k", pause_s=0.2)
    tries = len(here.outbox.takes)
    assert 3 <= tries <= 6
    assert actions(caplog) == []
    await asyncio.sleep(3.2)
    assert actions(caplog) == ["outbox-locked"]
    await asyncio.sleep(60)
    assert 30 <= len(here.outbox.takes) - tries <= 75
    assert actions(caplog) == ["outbox-locked"]
    here.outbox.locked = set()
    await asyncio.sleep(2)
    assert here.fired == [1]
    # The next lock is another one: it is asked for quickly, and said again if it lasts.
    here.outbox.locked = {"k"}
    here.outbox.takes.clear()
    await here.commit("k", pause_s=0.2)
    assert 3 <= len(here.outbox.takes) <= 6
    await asyncio.sleep(4)
    assert actions(caplog) == ["outbox-locked"] * 2


async def test_what_is_locked_is_said_with_the_sixth_try(caplog: pytest.LogCaptureFixture) -> None:
    """After about two seconds, also if it is so from the start: less is nothing to see to."""
    here = Relayed()
    here.relay.start()
    for round_ in (1, 2):
        here.outbox.locked = {"k"}
        here.outbox.takes.clear()
        await here.commit("k")
        while len(here.outbox.takes) < 6:
            assert len(actions(caplog)) == round_ - 1
            await asyncio.sleep(0.01)
        assert actions(caplog) == ["outbox-locked"] * round_
        here.outbox.locked = set()
        await asyncio.sleep(2)
        assert here.left == []
    await here.relay.stop()


async def test_a_locked_fire_that_was_left_behind(here: Relayed) -> None:
    """It is asked for again, and own fires go on meanwhile."""
    here.outbox.store("k", origin="there")
    here.outbox.locked = {"k"}
    await asyncio.sleep(10)
    assert here.outbox.takes and here.fired == []
    await here.commit("l")
    assert here.fired == [2]
    here.outbox.locked = set()
    await asyncio.sleep(2 * POLL_S)
    assert here.fired == [2, 1]


async def test_more_jobs_than_a_transaction_decides(here: Relayed) -> None:
    """It is taken again at once; the signal comes when all are decided, and every end is told."""
    here.outbox.at_once = 2
    ids = ["a", "b", "c", "d", "e"]
    here.outbox.jobs = {"k": ids.copy()}
    await here.commit("k", "l")
    assert here.cancelled == [["a", "b"], ["c", "d"], ["e"]]
    assert here.fired == [1, 2]
    assert here.outbox.takes == [[1, 2]] * 3


async def test_no_job_ended(here: Relayed) -> None:
    """Then nobody is told of any."""
    await here.commit("k")
    assert here.fired == [1] and here.cancelled == []


async def test_an_outage(here: Relayed, caplog: pytest.LogCaptureFixture) -> None:
    """Said once with its cause, tried again sooner than it polls, and its end is said."""
    here.outbox.errors = [StoreUnavailableError("the server is away")] * 5
    await here.commit("k", pause_s=0.04)
    assert 2 <= len(here.outbox.reads) <= 4
    assert actions(caplog) == ["outbox-waits"] and "the server is away" in caplog.text
    await asyncio.sleep(2)
    assert here.fired == [1]
    assert actions(caplog) == ["outbox-waits", "outbox-works"]
    assert caplog.records[0].levelno == logging.ERROR
    await asyncio.sleep(10)
    assert actions(caplog) == ["outbox-waits", "outbox-works"]
    here.outbox.errors = [StoreUnavailableError("it is away again")]
    await asyncio.sleep(10)
    assert actions(caplog) == ["outbox-waits", "outbox-works"] * 2


async def test_a_long_outage_is_tried_every_two_seconds(here: Relayed) -> None:
    """Less and less often, and after its end quickly again."""
    here.outbox.errors = [StoreUnavailableError("the server is away")] * 100
    here.outbox.reads.clear()
    await asyncio.sleep(60)
    assert 25 <= len(here.outbox.reads) <= 75
    here.outbox.errors.clear()
    await asyncio.sleep(4)
    here.outbox.errors = [StoreUnavailableError("it is away again")]
    await here.commit("k", pause_s=0.1)
    assert here.fired == [1]


async def test_the_log_of_signals_is_away(
    shared: Relayed, caplog: pytest.LogCaptureFixture
) -> None:
    """The fire stays stored, and follows."""
    shared.errors = [SignalsUnavailableError("no log")]
    await shared.commit("k")
    assert shared.left == [1] and shared.outbox.takes == []
    await asyncio.sleep(0.2)
    assert shared.fired == [1] and shared.left == []
    assert actions(caplog) == ["outbox-waits", "outbox-works"]


async def test_an_error_that_nobody_expects(
    here: Relayed, caplog: pytest.LogCaptureFixture
) -> None:
    """It is logged with its place, and the relay goes on, after a pause that no commit ends."""
    here.outbox.errors = [ValueError("a strange row")]
    await here.commit("k")
    for _ in range(10):
        await here.commit("k", pause_s=POLL_S / 11)
    assert actions(caplog) == ["outbox-failed"] and "a strange row" in caplog.text
    assert here.fired == []
    await asyncio.sleep(2 * POLL_S)
    assert here.fired == list(range(1, 12))


async def test_a_purgatory_that_is_closed(here: Relayed, caplog: pytest.LogCaptureFixture) -> None:
    """There is nobody to fire to: the relay ends by itself, without a word."""
    here.errors = [PurgatoryClosedError()]
    await here.commit("k")
    assert not is_running() and actions(caplog) == []


async def test_stop_fires_what_is_stored(here: Relayed) -> None:
    """Own fires only, once, and a second call does nothing."""
    here.outbox.store("k", "l")
    here.outbox.store("m", origin="there")
    here.outbox.reads.clear()
    began_ms = now_ms()
    await here.relay.stop()
    assert here.fired == [1, 2] and here.outbox.reads == [True]
    assert now_ms() == began_ms and not is_running()
    await here.relay.stop()
    assert here.outbox.reads == [True]


async def test_stop_before_start() -> None:
    """A purgatory whose store never opened stops its relay, too."""
    await Relayed().relay.stop()


async def test_stop_while_what_is_stored_is_locked(here: Relayed) -> None:
    """Another process fires it: this one ends at once."""
    here.outbox.locked = {"k"}
    await here.commit("k")
    began_ms = now_ms()
    await here.relay.stop()
    assert now_ms() == began_ms and here.left == [1]


async def test_stop_in_an_outage(here: Relayed) -> None:
    """Another process fires it: this one ends after the first error."""
    here.outbox.store("k")
    here.outbox.errors = [StoreUnavailableError("the server is away")]
    here.outbox.reads.clear()
    began_ms = now_ms()
    await here.relay.stop()
    assert now_ms() == began_ms
    assert here.left == [1] and here.outbox.reads == [True]


async def test_stop_while_the_database_hangs(here: Relayed) -> None:
    """It waits for a second, and no longer."""
    here.outbox.read_s = 600
    here.relay.wake()
    await asyncio.sleep(0.1)
    began_ms = now_ms()
    await here.relay.stop()
    assert 1_000 <= now_ms() - began_ms <= 1_002
    assert not is_running()


async def test_shared_signals_precede_the_removal(shared: Relayed) -> None:
    """In the log first, and once, however often it is taken."""
    shared.outbox.errors = [None, StoreUnavailableError("the connection broke")]
    await shared.commit("k", "l")
    assert shared.fired == [1, 2] and shared.left == [1, 2]
    await asyncio.sleep(0.2)
    assert shared.left == [] and shared.fired == [1, 2]
    assert shared.outbox.takes == [[1, 2], [1, 2]]


async def test_what_waits_for_a_lock_is_in_the_log_once(shared: Relayed) -> None:
    """However long: beyond the time for which the log knows its name; and so are later ones."""
    shared.outbox.locked = {"k"}
    shared.outbox.store("k", origin="ended")
    await asyncio.sleep(10)
    await shared.commit("k", "l", pause_s=10)
    assert sorted(shared.fired) == [1, 2, 3] and shared.left == [1, 2]
    shared.outbox.locked = set()
    await shared.commit("k", pause_s=10)
    assert sorted(shared.fired) == [1, 2, 3, 4] and shared.left == []


async def test_the_names_of_what_is_gone_are_forgotten(shared: Relayed) -> None:
    """The relay keeps them for as long as the fires are stored."""
    await shared.commit(*["k"] * 250, pause_s=10)
    assert len(shared.fired) == 250 and shared.left == []
    assert not any(shared.relay._appended.values())


async def test_what_was_read_long_ago_is_read_again(shared: Relayed, here: Relayed) -> None:
    """Another relay may have fired and forgotten it meanwhile: it must not be in the log twice."""
    for relayed in (shared, here):
        relayed.outbox.read_s = 5.001
        relayed.outbox.store("k")
        relayed.relay.wake()
    await asyncio.sleep(8)
    assert shared.fired == [] and shared.outbox.takes == [] and here.fired == [1]
    shared.outbox.read_s = 5.0
    await asyncio.sleep(15)
    assert shared.fired == [1]
