"""The script in a real Valkey does what the model does, and both keep the promises of the store."""

import asyncio
from itertools import count

from hypothesis import given, settings
from hypothesis import strategies as st

from purgatory.ownership.lease import (
    Acquire,
    Commit,
    LeaseRecord,
    LeaseStep,
    Read,
    Release,
    Renew,
)
from purgatory.ownership.redis import RedisLeaseStore
from tests.ownership.lease_model import LeaseModel
from tests.valkey_server import ValkeyServer

LEASE_MS = 1_000
START_US = 1_763_800_000_000_000
PREFIXES = count()

# What one of three processes does with one of two names, or how many milliseconds pass. Older
# tokens, epochs and versions come as from a process that was suspended, or a delayed message.
PROCESSES = st.integers(0, 2)
AGES = st.sampled_from([0, 0, 0, 1, 2])
STATES = st.sampled_from([b"", b"\x00\xff", b"state", None])
MOVES = st.one_of(
    st.tuples(st.just("pass"), st.sampled_from([1, 400, 999, 1_000, 1_001, 5_000, -300, -90_000])),
    st.tuples(st.just("acquire"), PROCESSES, st.booleans()),
    st.tuples(st.sampled_from(["renew", "release"]), PROCESSES, AGES),
    st.tuples(st.just("commit"), PROCESSES, AGES, STATES, st.integers(-1, 2)),
    st.tuples(st.just("read")),
)


class _Processes:
    """Processes that make steps from what they were told, or were told long ago."""

    def __init__(self) -> None:
        # [(process, token, epoch)], as acquired; never empty
        self.leases = [(0, "none", 0)]
        self.version = 0

    def step(self, name: str, move: tuple[object, ...]) -> LeaseStep:
        match move:
            case ("acquire", int(process), bool(is_repeat)):
                own = [token for by, token, _ in self.leases if by == process]
                is_known = is_repeat and own
                token = own[-1] if is_known else f"{process}:{len(self.leases)}"
                return Acquire(
                    name=name,
                    token=token,
                    instance=str(process),
                    address=f"http://host-{process}",
                    lease_ms=LEASE_MS,
                )
            case ("renew", int(process), int(age)):
                token, epoch = self._lease(process, age)
                return Renew(name=name, token=token, epoch=epoch, lease_ms=LEASE_MS)
            case ("release", int(process), int(age)):
                token, epoch = self._lease(process, age)
                return Release(name=name, token=token, epoch=epoch)
            case ("commit", int(process), int(age), state, int(ahead)):
                token, epoch = self._lease(process, age)
                assert state is None or isinstance(state, bytes)
                return Commit(
                    name=name,
                    token=token,
                    epoch=epoch,
                    lease_ms=LEASE_MS,
                    version=max(0, self.version + ahead),
                    state=state,
                )
        return Read(name=name)

    def _lease(self, process: int, age: int) -> tuple[str, int]:
        own = [lease for lease in self.leases if lease[0] == process] or self.leases
        _, token, epoch = own[-1 - age % len(own)]
        return token, epoch

    def note(self, step: LeaseStep, record: LeaseRecord) -> None:
        if isinstance(step, Acquire) and record.is_done:
            # A repeat of an acquisition is the same acquisition, unless another came between.
            for _, token, epoch in self.leases:
                assert token != step.token or epoch <= record.epoch
            highest = max(epoch for _, _, epoch in self.leases)
            is_repeat = (int(step.instance), step.token, record.epoch) in self.leases
            assert is_repeat or record.epoch > highest, "an epoch was given twice"
            self.leases.append((int(step.instance), step.token, record.epoch))
        if isinstance(step, Renew | Commit | Release) and record.is_done:
            assert step.epoch == max(epoch for _, _, epoch in self.leases), "an old owner came"
        assert record.version >= self.version
        self.version = record.version


def test_the_script_does_what_the_model_does(lease_server: ValkeyServer) -> None:
    """Whatever comes in whatever order, replies are the same; epochs and versions only grow."""

    @settings(max_examples=150, deadline=None)
    @given(st.lists(MOVES, min_size=1, max_size=40))
    def compare(moves: list[tuple[object, ...]]) -> None:
        asyncio.run(_compare(moves, lease_server.url))

    compare()


async def _compare(moves: list[tuple[object, ...]], url: str) -> None:
    now_us = START_US
    model = LeaseModel(lambda: now_us)
    store = RedisLeaseStore(url, f"laws:{next(PREFIXES)}", now_us=lambda: now_us)
    processes = _Processes()
    await store.open()
    try:
        for move in moves:
            if move[0] == "pass":
                assert isinstance(move[1], int)
                now_us += move[1] * 1_000
                continue
            step = processes.step("name", move)
            expected = model.apply(step)
            assert await store.run([step]) == [expected], step
            processes.note(step, expected)
    finally:
        await store.close()
