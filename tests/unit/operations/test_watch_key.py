"""What is a key: the same in the compiled form and in plain Python."""

from collections import UserString
from typing import Any

import pytest

from purgatory import InvalidKeyError
from purgatory.operations.watch_key import WATCH_BYTES, check_key, watch_bytes
from tests.cases import cases


class Liar(str):
    """Says of itself that it is fine."""

    __slots__ = ()

    def isprintable(self) -> bool:
        return True

    def __len__(self) -> int:
        return 3

    def __str__(self) -> str:
        return "fine"


@cases("text", ["", "\n", "a\x9f", "\ud800", "a" * 257])
def test_of_a_string_of_another_class_counts_what_it_holds(text: str) -> None:
    """Whatever its methods say."""
    with pytest.raises(InvalidKeyError):
        check_key(Liar(text))
    check_key(Liar("a"))


@cases("key", [UserString("a"), UserString("\n"), b"a", None, 1])
def test_what_is_no_string_is_no_key(key: Any) -> None:
    """Though it may look like one."""
    with pytest.raises(TypeError, match="not a string: give one such as"):
        check_key(key)


@cases("keys", [["a", "b"], ("a",), {"a"}, ["a"] * 1_000])
def test_several_keys_in_place_of_one(keys: Any) -> None:
    """The error shows the beginning of them, and how to give several."""
    with pytest.raises(TypeError, match=r"not a string: give each key .* park\(\*keys") as caught:
        check_key(keys)
    assert len(str(caught.value)) < 200


@cases("key", ["\u200d" * 256, "a \u200d", "\xa0", "\ud7ff\ue000"])
def test_what_is_not_printable_may_be_a_key(key: str) -> None:
    """Up to the same length, and with spaces."""
    check_key(key)


@cases("key", ["", "\u200d" * 257, "\x1f", "\x7f", "\x9f", "\ud800", chr(0xDFFF)])
def test_the_first_and_last_characters_that_no_key_has(key: str) -> None:
    """Controls, and halves of pairs."""
    with pytest.raises(InvalidKeyError):
        check_key(key)


def test_what_keys_take() -> None:
    """Four bytes for each character of one that is not of ASCII alone, and what a watch takes."""
    assert watch_bytes(()) == 0
    assert watch_bytes(("abc", "ab\xe9", 5)) == 3 * WATCH_BYTES + 3 + 4 * 3


def test_the_error_shows_the_beginning_of_a_key() -> None:
    """64 characters of one that holds what is not allowed, 32 of one that is too long."""
    for key, shown in (("a" * 100 + "\x00", 64), ("a" * 257, 32)):
        with pytest.raises(InvalidKeyError) as raised:
            check_key(key)
        assert f"'{'a' * shown}'" in str(raised.value)
