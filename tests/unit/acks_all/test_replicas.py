"""Replicas in and out of sync, leaders, epochs, and the log they share."""

import asyncio

import pytest

from examples.acks_all.config import BrokerConfig
from examples.acks_all.errors import BrokerError, FencedLeaderEpoch
from examples.acks_all.replica import Replica
from tests.unit.acks_all.broker import LAG_MS, PATIENT, A, open_broker


async def test_a_follower_waits_for_half_the_lag_at_most() -> None:
    """So one that lives is heard of before it would fall out of the ISR."""
    async with open_broker() as broker:
        started_ms = broker.now_ms()
        told = broker.fetch({A: 0}, replica_id=1, max_wait_ms=60_000)
        await asyncio.sleep(LAG_MS / 1000)
        assert told.at_ms == started_ms + LAG_MS // 2


# The ISR.


async def test_a_follower_that_stops_falls_out_and_completes_produces() -> None:
    """`replica_lag_ms` after it had everything; whoever waits for it is answered then."""
    async with open_broker() as broker:
        broker.follow(0, 1, 2)
        caught_up_ms = broker.now_ms()
        await asyncio.sleep(0.3)
        told = broker.produce()
        broker.follow(1, 1)
        assert broker.partition().isr == {0, 1, 2}
        await asyncio.sleep(2)
        assert told.slugs == {A: "ok"}
        assert told.at_ms == caught_up_ms + LAG_MS
        assert broker.partition().isr == {0, 1}
        assert broker.purgatory.parked == 0


async def test_a_follower_that_has_everything_does_not_fall_out() -> None:
    """However long nothing happens; and the first append that it does not fetch is its end."""
    async with open_broker() as broker:
        broker.follow(0, 1, 2)
        await asyncio.sleep(100)
        assert broker.partition().isr == {0, 1, 2}
        told = broker.produce()
        broker.follow(1, 1)
        await asyncio.sleep(0.001)
        assert told.slugs == {A: "ok"}
        assert broker.partition().isr == {0, 1}


async def test_a_follower_that_keeps_up_with_a_growing_log_stays() -> None:
    """It is always behind, but never for long: each fetch has what was there at the last."""
    async with open_broker() as broker:
        for offset in range(30):
            broker.produce(acks_all=False)
            # What it has is what there was before this append.
            broker.follow(offset, 1, 2)
            await asyncio.sleep(0.2)
        assert broker.partition().isr == {0, 1, 2}
        assert broker.partition().high_watermark == 29


async def test_a_follower_that_falls_behind_a_growing_log_falls_out() -> None:
    """Fetching is not enough, if it never has what was there at its last fetch."""
    async with open_broker() as broker:
        for offset in range(30):
            broker.produce(acks_all=False)
            broker.follow(offset, 1)
            broker.follow(offset // 2, 2)
            await asyncio.sleep(0.2)
        assert broker.partition().isr == {0, 1}


async def test_followers_that_stop_behind_a_grown_log_fall_out_in_time() -> None:
    """Also after they were watched for longer than the lag, and nothing else happens."""
    async with open_broker() as broker:
        for offset in range(8):
            broker.produce(acks_all=False)
            broker.follow(offset, 1, 2)
            last_fetch_ms = broker.now_ms()
            await asyncio.sleep(0.2)
        told = broker.produce()
        await asyncio.sleep(3)
        # What they had at the last fetch was all that there was at the fetch before it.
        assert told.at_ms - (last_fetch_ms - 200 + LAG_MS) in (0, 1)
        assert broker.partition().isr == {0}


def test_a_replica_has_caught_up_as_of_its_last_fetch() -> None:
    """If it has what was the end of the log then; now, if it has what is the end now."""
    replica = Replica(1, now_ms=0)
    replica.fetch(0, 10, now_ms=100)
    assert replica.last_caught_up_ms == 0
    replica.fetch(10, 20, now_ms=200)
    assert replica.last_caught_up_ms == 100
    replica.fetch(19, 20, now_ms=300)
    assert replica.last_caught_up_ms == 100
    replica.fetch(20, 20, now_ms=400)
    assert replica.last_caught_up_ms == 400


async def test_too_few_in_sync_fail_who_waits_and_refuse_who_comes() -> None:
    """NOT_ENOUGH_REPLICAS_AFTER_APPEND for the one that was appended, then NOT_ENOUGH_REPLICAS."""
    async with open_broker() as broker:
        told = broker.produce()
        await asyncio.sleep(2 * LAG_MS / 1000)
        assert told.slugs == {A: "not-enough-replicas-after-append"}
        assert broker.partition().isr == {0}
        assert broker.produce().slugs == {A: "not-enough-replicas"}
        assert broker.partition().log.end_offset == 1
        assert broker.produce(acks_all=False).slugs == {A: "ok"}
        assert broker.partition().high_watermark == 2


async def test_a_follower_returns_when_it_has_what_is_committed() -> None:
    """And is watched from then on: it falls out again if it stays behind."""
    async with open_broker() as broker:
        broker.produce(acks_all=False)
        await asyncio.sleep(2 * LAG_MS / 1000)
        broker.produce(acks_all=False)
        broker.follow(1, 1)
        assert broker.partition().isr == {0}
        broker.follow(2, 1)
        assert broker.partition().isr == {0, 1}
        told = broker.produce()
        broker.follow(3, 1)
        assert told.slugs == {A: "ok"}
        broker.produce(acks_all=False)
        await asyncio.sleep(2 * LAG_MS / 1000)
        assert broker.partition().isr == {0}


async def test_a_follower_that_joins_behind_is_watched() -> None:
    """The high watermark waits for it, though not for ever."""
    async with open_broker(BrokerConfig(topics={"a": 1}, replica_lag_ms=LAG_MS)) as broker:
        broker.follow(0, 1)
        told = broker.produce(timeout_ms=60_000)
        await asyncio.sleep(LAG_MS / 1000)
        assert broker.partition().isr == {0}
        assert told.slugs == {A: "not-enough-replicas-after-append"}
        broker.produce(acks_all=False)
        broker.follow(2, 1)
        assert broker.partition().isr == {0, 1}
        broker.produce(acks_all=False)
        # At the high watermark, and not at the end.
        broker.follow(2, 2)
        assert broker.partition().isr == {0, 1, 2}
        broker.follow(3, 1)
        assert broker.partition().high_watermark == 2
        await asyncio.sleep(2 * LAG_MS / 1000)
        assert broker.partition().isr == {0, 1}
        assert broker.partition().high_watermark == 3


# Leaders.


async def test_a_leader_that_goes_takes_along_what_is_not_committed() -> None:
    """What was refused with "not-leader" is not there when the leader returns."""
    async with open_broker() as broker:
        committed = broker.produce({A: ["kept"]})
        broker.follow(1, 1, 2)
        lost = broker.produce({A: ["lost"]})
        broker.follow(2, 1)
        broker.manager.change_leader(A, 2, 1)
        assert (committed.slugs, lost.slugs) == ({A: "ok"}, {A: "not-leader"})
        assert broker.produce().slugs == {A: "not-leader"}
        broker.manager.change_leader(A, 0, 2)
        assert broker.fetch({A: 0}).values == {A: ["kept"]}
        assert broker.partition().epoch_start_offset == 1


async def test_a_new_epoch_waits_for_each_follower_to_fetch_in_it() -> None:
    """What followers had in an old epoch counts for nothing in a new one."""
    async with open_broker() as broker:
        broker.follow(0, 1, 2)
        broker.manager.change_leader(A, 0, 1)
        told = broker.produce()
        assert broker.fetch({A: 1}, replica_id=1, leader_epoch=0).slugs == {
            A: "fenced-leader-epoch"
        }
        broker.fetch({A: 1}, replica_id=1, leader_epoch=1)
        assert told.is_waiting
        broker.fetch({A: 1}, replica_id=2, leader_epoch=1)
        assert told.slugs == {A: "ok"}


async def test_what_a_follower_had_of_a_lost_epoch_acknowledges_nothing() -> None:
    """It was truncated here, and something else has been appended at the same offset."""
    async with open_broker() as broker:
        broker.produce({A: ["lost"]})
        broker.follow(1, 1)
        broker.manager.change_leader(A, None, 1)
        broker.manager.change_leader(A, 0, 2)
        told = broker.produce({A: ["new"]})
        broker.follow(1, 2)
        assert told.is_waiting
        broker.follow(1, 1)
        assert told.slugs == {A: "ok"}


async def test_who_waits_in_turn_is_not_taken_for_another() -> None:
    """A record of a later epoch at the same offset acknowledges nothing of an earlier one."""
    async with open_broker(PATIENT) as broker:
        told = broker.produce(acks_all=True)
        status = told.operation.statuses[A]
        broker.partition().change_leader(1, 1, 0)
        broker.partition().change_leader(0, 2, 0)
        broker.partition().append(["another"], acks_all=True)
        broker.partition().update_follower(1, 1, 0)
        broker.partition().update_follower(2, 1, 0)
        with pytest.raises(BrokerError, match="does not lead"):
            broker.manager.has_replicated(A, status)


async def test_an_old_epoch_changes_nothing() -> None:
    """The controller's words may come late."""
    async with open_broker() as broker:
        broker.manager.change_leader(A, 1, 5)
        with pytest.raises(FencedLeaderEpoch):
            broker.manager.change_leader(A, 0, 4)
        assert (broker.partition().leader, broker.partition().leader_epoch) == (1, 5)
