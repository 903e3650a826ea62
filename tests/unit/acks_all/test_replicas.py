"""Replicas in and out of sync, leaders, epochs, and the log they share."""

import asyncio

from tests.unit.acks_all.broker import LAG_MS, A, open_broker

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
