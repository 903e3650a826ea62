"""What a client asks for when it watches."""

from __future__ import annotations

import pytest

from purgatory import Purgatory
from purgatory.fastapi.http.problems import Problem
from purgatory.fastapi.http.raw_request import RawRequest
from purgatory.fastapi.watch.request import WatchRequest
from purgatory.fastapi.watch.request_parser import WatchParser
from purgatory.fastapi.watch.settings import WaitSettings

PARSER = WatchParser(Purgatory(), WaitSettings())


def _parsed(path: str) -> WatchRequest:
    # A string of its own, as each request has it.
    key = path[len("/watch/") :]
    raw = RawRequest(path, path.encode(), b"wait=2", [], key)
    return PARSER.parse(raw)


def test_those_who_wait_for_the_same_share_it() -> None:
    """There are as many of them as clients: each keeps no key, position or terms of its own."""
    first, second = _parsed("/watch/order:42"), _parsed("/watch/order:42")
    assert first == second
    assert first.keys is second.keys and first.positions is second.positions
    assert first.terms is second.terms


def test_a_key_that_is_none_is_refused_each_time() -> None:
    """Only what is good is remembered."""
    for _ in range(2):
        with pytest.raises(Problem) as refusal:
            _parsed("/watch/order\n42")
        assert refusal.value.kind.slug == "bad-parameter"
