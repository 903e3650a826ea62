"""Leases in virtual time: who owns a name, from when, and until when."""

import asyncio
from typing import Any

import pytest

from purgatory import InvalidKeyError, PurgatoryClosedError
from purgatory.ownership import Lease, LeaseLostError, Owner, Ownership, OwnershipUnavailableError
from purgatory.testing import current_clock
from tests.cases import cases
from tests.ownership.lease_model import LeaseModel, LossyStore
from tests.virtual_time import anyio_backend  # noqa: F401 # a fixture

LEASE_MS = 3_000
LEASE = LEASE_MS / 1_000


class _Bench:
    """Two processes, `a` and `b`, and the store between them."""

    def __init__(self) -> None:
        self.clock = current_clock()
        self.model = LeaseModel(lambda: 1_000_000 + self.clock.now_ns() // 1_000)
        self.lost: list[Lease] = []
        self.stores = {name: LossyStore(self.model) for name in "ab"}
        self.a, self.b = (
            Ownership(
                store,
                f"http://{name}",
                lease_ms=LEASE_MS,
                on_lost=self.lost.append,
                clock=self.clock,
            )
            for name, store in self.stores.items()
        )

    def now(self) -> float:
        return self.clock.now_ns() / 1e9


@pytest.fixture
async def bench() -> Any:
    """Both are open during the test."""
    bench = _Bench()
    async with bench.a, bench.b:
        yield bench


async def _lease(ownership: Ownership, name: str = "n") -> Lease:
    found = await ownership.acquire(name)
    assert isinstance(found, Lease)
    return found


async def test_one_owner_at_a_time(bench: _Bench) -> None:
    """Others are told its address; its own requests get the same lease, without the store."""
    lease = await _lease(bench.a)
    owner = await bench.b.acquire("n")
    assert owner == Owner("http://a", lease.epoch, LEASE_MS)
    before = bench.stores["a"].round_trips
    assert await bench.a.acquire("n") is lease
    assert bench.a.lease("n") is lease
    assert bench.stores["a"].round_trips == before
    assert bench.b.lease("n") is None
    assert isinstance(await bench.b.acquire("other"), Lease)


async def test_requests_that_come_together_acquire_once(bench: _Bench) -> None:
    """A hundred requests for one name are one step, also when some of them are cancelled."""
    bench.stores["a"].delay = 0.1
    tasks = [asyncio.create_task(bench.a.acquire("n")) for _ in range(100)]
    await asyncio.sleep(0.05)
    tasks[0].cancel()
    found = await asyncio.gather(*tasks, return_exceptions=True)
    assert isinstance(found[0], asyncio.CancelledError)
    assert len(set(map(id, found[1:]))) == 1
    assert bench.stores["a"].round_trips == 1


async def test_a_lease_is_renewed_for_as_long_as_its_owner_lives(bench: _Bench) -> None:
    """All leases of a process share a round trip, each third of a lease."""
    leases = [await _lease(bench.a, f"n{number}") for number in range(50)]
    before = bench.stores["a"].round_trips
    await asyncio.sleep(10 * LEASE)
    assert all(lease.is_valid for lease in leases)
    assert 29 <= bench.stores["a"].round_trips - before <= 31
    assert bench.lost == []


async def test_a_committed_state_is_there_for_the_next_owner(bench: _Bench) -> None:
    """It gets the state with the lease, under a higher epoch."""
    lease = await _lease(bench.a)
    assert lease.state is None
    await bench.a.commit(lease, b"1")
    await bench.a.commit(lease, b"2")
    await bench.a.release(lease)
    assert not lease.is_valid and bench.lost == []
    following = await _lease(bench.b)
    assert (following.state, following.epoch > lease.epoch) == (b"2", True)
    record = await bench.a.read("n")
    assert (record.state, record.address, record.epoch) == (b"2", "http://b", following.epoch)
    await bench.b.commit(following, None)
    assert (await bench.a.read("n")).state is None
    with pytest.raises(LeaseLostError, match=f"epoch {lease.epoch} has ended"):
        await bench.a.commit(lease, b"3")


async def test_a_cut_off_owner_stops_before_another_begins(bench: _Bench) -> None:
    """By its own clock, with a margin; then it is told that it has lost the lease, once."""
    lease = await _lease(bench.a)
    bench.stores["a"].is_cut = True
    cut_at = bench.now()
    while lease.is_valid:
        assert isinstance(await bench.b.acquire("n"), Owner)
        await asyncio.sleep(0.01)
    assert 0.5 * LEASE < bench.now() - cut_at < LEASE
    await asyncio.sleep(0.2 * LEASE)
    assert bench.lost == [lease]
    following = await _lease(bench.b)
    bench.stores["a"].is_cut = False
    assert following.epoch > lease.epoch
    assert isinstance(await bench.a.acquire("n"), Owner)
    assert bench.lost == [lease]


async def test_a_suspended_owner_commits_nothing_once_it_is_replaced(bench: _Bench) -> None:
    """Its clock tells it so itself; and where it does not, the epoch does."""
    lease = await _lease(bench.a)
    await bench.a.commit(lease, b"a")
    # As by SIGSTOP: nothing of the process runs, so nothing is renewed.
    await bench.a._renewer.stop()
    await asyncio.sleep(LEASE)
    following = await _lease(bench.b)
    # As of a machine whose clock stood still meanwhile.
    lease._valid_until_ns = bench.clock.now_ns() + 10**12
    with pytest.raises(LeaseLostError):
        await bench.a.commit(lease, b"old")
    assert bench.lost == [lease]
    assert (await bench.b.read("n")).state == b"a"
    await bench.b.commit(following, b"b")


async def test_a_commit_is_repeated_until_the_lease_ends(bench: _Bench) -> None:
    """A commit whose replies are lost is done once; one that never arrives ends the lease."""
    lease = await _lease(bench.a)
    bench.stores["a"].loses_replies = True
    committing = asyncio.create_task(bench.a.commit(lease, b"1"))
    await asyncio.sleep(0.2 * LEASE)
    bench.stores["a"].loses_replies = False
    await committing
    record = await bench.a.read("n")
    assert (record.state, record.version) == (b"1", 1)
    bench.stores["a"].is_cut = True
    began = bench.now()
    with pytest.raises(LeaseLostError):
        await bench.a.commit(lease, b"2")
    assert bench.now() - began < LEASE
    assert bench.lost == [lease]


async def test_a_slow_store_is_out_of_reach(bench: _Bench) -> None:
    """No step waits longer than a quarter of a lease, and acquiring no longer than its timeout."""
    bench.stores["a"].delay = 3600.0
    began = bench.now()
    with pytest.raises(OwnershipUnavailableError, match=r"did not reply within 0\.75 s"):
        await bench.a.acquire("n")
    assert 2 <= bench.now() - began < 4
    bench.stores["a"].delay = 0
    assert isinstance(await bench.a.acquire("n"), Lease)


async def test_a_cancellation_that_the_store_swallows(bench: _Bench) -> None:
    """As `asyncio.wait_for` does before Python 3.12, and so redis-py: the caller is cancelled."""

    async def run_swallowing(steps: Any) -> Any:
        try:
            await asyncio.sleep(0.1)
        except asyncio.CancelledError:
            pass
        return await bench.model.run(steps)

    lease = await _lease(bench.a)
    bench.stores["a"].run = run_swallowing  # type: ignore[method-assign] # as redis-py may
    committing = asyncio.create_task(bench.a.commit(lease, b"1"))
    await asyncio.sleep(0.05)
    committing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await committing
    assert lease.is_valid
    await bench.a.commit(lease, b"2")
    assert (await bench.a.read("n")).state == b"2"


async def test_closing_releases_everything(bench: _Bench) -> None:
    """The next process need not wait for a lease to end; what is out of reach ends by itself."""
    lease = await _lease(bench.a)
    another = Ownership(bench.stores["b"], "http://c", clock=bench.clock)
    async with another:
        await another.acquire("m")
    await bench.a.close()
    assert not lease.is_valid and bench.lost == []
    assert isinstance(await bench.b.acquire("n"), Lease)
    assert isinstance(await bench.b.acquire("m"), Lease)
    for use in (bench.a.acquire, bench.a.read):
        with pytest.raises(PurgatoryClosedError, match="async with"):
            await use("n")
    bench.stores["b"].is_cut = True
    await bench.b.close()
    await bench.b.open()
    await bench.a.open()
    assert isinstance(await bench.a.acquire("n"), Owner)


async def test_an_on_lost_that_fails_stops_nothing(
    bench: _Bench, caplog: pytest.LogCaptureFixture
) -> None:
    """It is logged, and renewals go on."""
    bench.a.on_lost = lambda lease: 1 / 0
    lost = await _lease(bench.a, "lost")
    kept = await _lease(bench.a, "kept")
    lost._valid_until_ns = 0
    await asyncio.sleep(2 * LEASE)
    assert "on_lost failed" in caplog.text
    assert kept.is_valid


@cases(
    "options, sentence",
    [
        ({"address": ""}, "give the address of this process"),
        ({"address": "http://a\nb"}, "give the address of this process"),
        ({"lease_ms": 99}, "lease_ms is 99: give a whole number from 100 to 3600000"),
        ({"lease_ms": 1e3}, "lease_ms is 1000.0"),
        ({"timeout": float("nan")}, "timeout is nan: give seconds, above zero"),
    ],
)
def test_options_out_of_range(options: dict[str, Any], sentence: str) -> None:
    """Each is refused with what is allowed."""
    with pytest.raises(ValueError, match=sentence):
        Ownership(LeaseModel(lambda: 0), **{"address": "http://a", **options})


async def test_names_and_states_out_of_range(bench: _Bench) -> None:
    """Names are as watch keys; a state has a megabyte."""
    for name in ("", "a\nb", "x" * 257):
        with pytest.raises(InvalidKeyError):
            await bench.a.acquire(name)
    lease = await _lease(bench.a, "x" * 256)
    await bench.a.commit(lease, b"x" * 1_048_576)
    with pytest.raises(ValueError, match="has 1048577 bytes: commit at most 1048576"):
        await bench.a.commit(lease, b"x" * 1_048_577)
    assert "epoch=" in repr(lease) and "valid" in repr(lease)


async def test_a_loop_that_is_blocked_for_longer_than_a_lease(bench: _Bench) -> None:
    """It never owns anything, and says why."""
    run = bench.model.run

    async def run_blocked(steps: Any) -> Any:
        results = await run(steps)
        bench.clock.advance(LEASE_MS)
        return results

    bench.stores["a"].run = run_blocked  # type: ignore[method-assign] # a loop blocked by others
    with pytest.raises(OwnershipUnavailableError, match="event loop is blocked"):
        await bench.a.acquire("n")
    assert bench.a.lease("n") is None


async def test_a_short_cut_costs_nothing(bench: _Bench) -> None:
    """Renewals are tried again until the lease ends."""
    lease = await _lease(bench.a)
    for _ in range(10):
        bench.stores["a"].is_cut = True
        await asyncio.sleep(0.5 * LEASE)
        bench.stores["a"].is_cut = False
        await asyncio.sleep(0.5 * LEASE)
    assert lease.is_valid and bench.lost == []
