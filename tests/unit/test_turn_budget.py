"""Work whose amount a peer decides, a turn of the event loop at a time."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from purgatory.testing import MockClock
from purgatory.turn_budget import TURN_NS, TurnBudget

costs = st.lists(st.integers(min_value=0, max_value=2 * TURN_NS), max_size=50)


@given(costs=costs)
def test_a_turn_ends_with_the_item_that_spends_it(costs: list[int]) -> None:
    """Each turn but the last has used its 2 ms, and none begins an item after that."""
    clock = MockClock()
    budget = TurnBudget(clock=clock)
    turns: list[list[int]] = [[]]

    async def work() -> None:
        for cost in costs:
            clock.advance_ns(cost)
            turns[-1].append(cost)
            await budget.yield_if_spent()

    working = work()
    while True:
        try:
            working.send(None)  # runs until asyncio.sleep(0), which is one turn of the loop
        except StopIteration:
            break
        turns.append([])
    assert [cost for turn in turns for cost in turn] == costs
    assert all(sum(turn[:-1]) < TURN_NS for turn in turns)
    assert all(sum(turn) >= TURN_NS for turn in turns[:-1])
    assert budget.turns == len(turns)
