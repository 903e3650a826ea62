"""Which Accept headers ask for a stream of events (RFC 9110, 12.5.1)."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from purgatory.fastapi.watch.routes import are_preferred

EVENTS = "text/event-stream"
WEIGHTS = ["", ";q=0", ";q=0.001", ";q=0.5", ";q=1", ";q=1.000"]


def test_what_is_a_stream() -> None:
    """Events named with a weight that is neither 0 nor below that of JSON."""
    for accept, is_stream in [
        (EVENTS, True),
        (f"{EVENTS}, */*", True),
        (f"{EVENTS};q=0", False),
        (f"{EVENTS}; q=0.000", False),
        (f"{EVENTS};q=0.5, application/json", False),
        (f"{EVENTS};q=0.5, application/json;q=0.4", True),
        (f"application/json, {EVENTS}", True),
        (f"{EVENTS};q=0.5, */*;q=0.1, application/json;q=0.9", False),
        (f"{EVENTS};q=0.5, */*;q=0.9, application/json;q=0.1", True),
        (f"{EVENTS};q=0.5, application/*", False),
        (f"{EVENTS};charset=utf-8;q=0.3", True),
        (f"{EVENTS};q=what", True),
        (f'text/plain;title="a, {EVENTS}"', False),
        (f'text/plain;title="a, {EVENTS}', False),
        (f'{EVENTS};title="a\\', True),
        (f"{EVENTS}-of-mine", False),
        ("text/*", False),
        ("*/*", False),
        ("", False),
        (",;,=;q=", False),
    ]:
        assert are_preferred(accept) is is_stream


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["application/json", "application/*", "*/*", "text/*", "text/html"]),
            st.sampled_from(WEIGHTS),
        ),
        unique_by=lambda item: item[0],
        max_size=4,
    ),
    st.sampled_from(WEIGHTS),
    st.randoms(use_true_random=False),
)
def test_the_order_says_nothing(others: list[tuple[str, str]], weight: str, random: object) -> None:
    """Only weights count, whatever the order of the ranges; a weight of 0 is always a wait."""
    items = [name + weight for name, weight in [*others, (EVENTS, weight)]]
    expected = are_preferred(",".join(items))
    random.shuffle(items)  # type: ignore[attr-defined]  # Hypothesis gives a random.Random
    assert are_preferred(" , ".join(items)) is expected
    if weight == ";q=0":
        assert not expected


@given(st.text(max_size=300))
def test_any_header(accept: str) -> None:
    """Is understood one way or the other."""
    are_preferred(accept.lower())
    are_preferred(f"{EVENTS};{accept.lower()}")


def test_a_long_header_of_quotes_that_do_not_end_is_parsed_in_one_pass() -> None:
    """Looking for the end of each quote took hours for such a megabyte."""
    assert are_preferred(f'{EVENTS};x="' + '\\"' * 500_000)
