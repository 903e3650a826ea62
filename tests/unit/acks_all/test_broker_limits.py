"""A broker that is full or drains, the bounds of its log, and its settings."""

import pytest

from examples.acks_all.config import BrokerConfig
from examples.acks_all.errors import BrokerBusy, BrokerClosing
from purgatory import Limits
from tests.cases import cases
from tests.unit.acks_all.broker import A, B, open_broker


async def test_a_full_purgatory_refuses_before_it_appends() -> None:
    """Who finds no place to wait leaves nothing in the log; who need not wait is served."""
    async with open_broker(limits=Limits(max_parked=2)) as broker:
        told = broker.produce()  # and the timer that watches the followers
        with pytest.raises(BrokerBusy):
            broker.produce()
        with pytest.raises(BrokerBusy):
            broker.fetch({A: 0}, max_wait_ms=100)
        assert broker.produce({B: ["1"]}, acks_all=False).slugs == {B: "broker-busy"}
        assert broker.partition(A).log.end_offset == 1
        assert broker.partition(B).log.end_offset == 0
        broker.follow(1, 1, 2)
        assert told.slugs == {A: "ok"}
        assert broker.fetch({A: 0}, max_wait_ms=100).values == {A: ["value"]}


async def test_draining_answers_everybody() -> None:
    """A produce is not acknowledged, a fetch has what there is, and who comes later is refused."""
    async with open_broker() as broker:
        produce = broker.produce({A: ["1"], B: ["2"]})
        broker.follow(1, 1, 2, name=A)
        fetch = broker.fetch({A: 0}, min_bytes=500, max_wait_ms=60_000)
        await broker.purgatory.drain()
        assert produce.slugs == {A: "ok", B: "not-acknowledged"}
        assert fetch.values == {A: ["1"]}
        with pytest.raises(BrokerClosing):
            broker.produce()
        with pytest.raises(BrokerClosing):
            broker.fetch({A: 1}, max_wait_ms=100)
        assert broker.fetch({A: 0}, max_wait_ms=100).values == {A: ["1"]}


async def test_old_records_make_way_once_they_are_committed() -> None:
    """The log is bounded, in bytes and in records, and what is not committed is kept."""
    async with open_broker() as broker:
        for _ in range(10):
            broker.produce({A: ["x" * 100]}, acks_all=False)
        assert broker.produce({A: ["y"]}, acks_all=False).slugs == {A: "log-full"}
        broker.follow(10, 1, 2)
        broker.produce({A: ["y" * 100] * 5}, acks_all=False)
        broker.follow(15, 1, 2)
        assert (broker.partition().log.start_offset, broker.partition().log.size) == (5, 1000)
        assert broker.fetch({A: 4}).slugs == {A: "offset-out-of-range"}
        assert broker.produce({B: ["z"] * 51}, acks_all=False).slugs == {B: "log-full"}


@cases(
    "settings_, complaint",
    [
        ({"broker_id": 7}, "broker_id 7"),
        ({"min_insync_replicas": 4}, "give 1 to 3"),
        ({"min_insync_replicas": 0}, "give 1 to 3"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(
    settings_: dict[str, int], complaint: str
) -> None:
    """With a sentence that says what is allowed."""
    with pytest.raises(ValueError, match=complaint):
        BrokerConfig(**settings_)  # type: ignore[arg-type] # integers all of them
