"""The docs name what exists, and show the house as it is."""

from tests.house.picture import PAGE, redrawn, reduced


def test_the_picture_of_the_house_is_current() -> None:
    """docs/architecture.md shows the rooms and their imports as they are."""
    page = PAGE.read_text(encoding="utf-8")
    assert page == redrawn(page), "draw it anew: make docs-house"


def test_arrows_that_a_longer_path_implies_are_left_out() -> None:
    """The picture shows an import only if no other arrows lead there."""
    edges = {"a": {"b", "c"}, "b": {"c"}, "c": set[str]()}
    assert reduced(edges) == {"a": {"b"}, "b": {"c"}, "c": set()}
