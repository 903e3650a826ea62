"""What one owner fires evicts no more of another's than is beyond an equal part of the memory."""

from hypothesis import given
from hypothesis import strategies as st

from purgatory.limits import Limits
from purgatory.signals import MemorySignals
from purgatory.testing import MockClock

OWNERS = [None, "ann", "bob", "eve"]
MAX_VALUE = 20

fires = st.lists(
    st.tuples(st.sampled_from(OWNERS), st.integers(0, 3), st.integers(0, MAX_VALUE - 2)),
    max_size=80,
)


@given(
    fired=fires,
    flood=st.integers(0, 60),
    in_all=st.integers(len(OWNERS), 40),
    in_bytes=st.integers(len(OWNERS) * MAX_VALUE, 400),
)
def test_each_owner_keeps_its_part(
    fired: list[tuple[str | None, int, int]], flood: int, in_all: int, in_bytes: int
) -> None:
    """The newest of its own signals, as many as make an equal part of both limits, or all."""
    limits = Limits(max_signals=in_all, max_signal_bytes=in_bytes, max_value_bytes=MAX_VALUE)
    signals = MemorySignals(clock=MockClock(), limits=limits)
    by_owner: dict[str | None, list[int]] = {owner: [] for owner in OWNERS}
    for owner, number, size in fired + [("eve", number, 0) for number in range(flood)]:
        signals.append(f"{owner}:{number}", "x" * size, owner)
        by_owner[owner].append(size + 2)
    owners = sum(map(bool, by_owner.values()))
    for owner, sizes in by_owner.items():
        kept = [
            signal
            for key in {f"{owner}:{number}" for number in range(60)}
            for signal in signals.read(key, 0, in_all)
        ]
        due = due_bytes = 0
        for size in reversed(sizes):
            # A part is made up of whole signals.
            if due + 1 > in_all // owners - 1 or due_bytes + size > in_bytes / owners - MAX_VALUE:
                break
            due, due_bytes = due + 1, due_bytes + size
        assert len(kept) >= due
        # Its oldest ones were trimmed.
        offsets = sorted(signal.offset for signal in kept)
        assert [len(signal.encoded) for signal in sorted(kept, key=lambda s: s.offset)] == (
            sizes[len(sizes) - len(offsets) :]
        )


@given(fired=fires, in_all=st.integers(1, 8))
def test_owners_are_counted(fired: list[tuple[str | None, int, int]], in_all: int) -> None:
    """Also where several fire the same keys; one without signals takes no memory."""
    signals = MemorySignals(clock=MockClock(), limits=Limits(max_signals=in_all))
    for owner, number, size in fired:
        signals.append(str(number), "x" * size, owner)
    signals.drop("0")
    assert signals.statistics().signals <= in_all
    while signals.trim_through(signals.head(), 2):
        pass
    assert signals.statistics().signals == signals.statistics().bytes == 0
    # A fire of each is retained alone, whoever had signals before.
    for owner in OWNERS:
        signals.append("1", 7, owner)
        assert [signal.value for signal in signals.read("1", 0, 10)][-1] == 7
