"""Slots that owners share."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from purgatory.jobs.handlers.fair_slots import FairSlots, Lane, Shares


def fill(slots: FairSlots, owner: str | None, host: str = "h") -> int:
    """Take all slots that are to be had; return how many."""
    taken = 0
    while slots.try_take(owner, host):
        taken += 1
    return taken


def test_an_owner_takes_no_more_than_are_left() -> None:
    """Half if it is alone, and the next one finds some; a third each once both have used theirs."""
    slots = FairSlots(12, per_owner=12, per_host=12)
    assert (fill(slots, "a"), fill(slots, "b"), fill(slots, None)) == (6, 3, 2)
    for _ in range(3):
        slots.release("a", "h")
    assert (fill(slots, "a"), fill(slots, "b"), fill(slots, "c")) == (1, 0, 2)
    assert fill(FairSlots(1, per_owner=1, per_host=1), "a") == 1


def test_bounds_of_an_owner_and_of_a_host() -> None:
    """Whichever is lower; at each host, too, an owner leaves slots to others."""
    slots = FairSlots(100, per_owner=10, per_host=8)
    assert (fill(slots, "a", "1"), fill(slots, "a", "2"), fill(slots, "a", "3")) == (4, 4, 2)
    assert (fill(slots, "b", "1"), fill(slots, "b", "4")) == (2, 4)
    assert not slots.has_room("a") and slots.has_room("b")


def test_a_release_is_heard_and_leaves_nothing() -> None:
    """Hosts and owners without slots are forgotten."""
    slots, heard = FairSlots(2, per_owner=2, per_host=2), []
    slots.on_release.add(lambda: heard.append(slots.has_room("a")))
    lane = Lane(slots, "a", "h")
    assert [slots.try_take(lane.owner, lane.host) for _ in range(2)] == [True, False]
    # Whether there is room or not.
    lane.take()
    for _ in range(2):
        lane.release()
    assert heard == [False, True]
    assert slots._hosts == {} and slots._shares._taken == {}


@given(st.integers(1, 9), st.integers(1, 9), st.lists(st.tuples(st.integers(0, 4), st.booleans())))
def test_the_law_of_shares(total: int, most: int, turns: list[tuple[int, bool]]) -> None:
    """Never more than the total; who has none gets the next place, before all who have some."""
    shares, held = Shares(total, most), Counter[str | None]()
    for number, is_taken in turns:
        owner = str(number)
        if is_taken and shares.has_room(owner):
            shares.take(owner)
            held[owner] += 1
        elif held[owner]:
            shares.release(owner)
            held[owner] -= 1
        assert shares.free == total - held.total() >= 0 and len(shares) == held.total()
        assert shares.has_room("new") is (shares.free > 0)
        for each, count in held.items():
            assert shares.has_room(each) is (count < shares.free and count < most)
