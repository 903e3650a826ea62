"""Names that are made of others: no two different pairs have the same."""

from __future__ import annotations

from collections.abc import Callable
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from purgatory.fastapi.watch.settings import client_key
from purgatory.jobs.model.job import owned_dedupe_key
from purgatory.jobs.redis import RedisJobStore
from purgatory.ownership.redis import RedisLeaseStore
from purgatory.signals.model import Idempotency
from purgatory.signals.redis import RedisSignals

URL = "redis://127.0.0.1:1"
# Every separator in use, and some texts to stand between them.
PARTS = st.sampled_from([*":/~@. -,|#%=;", "a", "1", "2", "12", "signals", "jobs", "0"])
# As a pair that is joined by a separator could be split elsewhere.
PAIRS = st.lists(PARTS, min_size=3, max_size=8).flatmap(
    lambda parts: st.integers(1, len(parts) - 1).map(
        lambda at: ("".join(parts[:at]), "".join(parts[at:]))
    )
)


def repeated_request(owner: str, name: str) -> str:
    return Idempotency(owner=owner, name=name, fingerprint="").hash


def lease(prefix: str, name: str) -> str:
    return RedisLeaseStore(URL, prefix).key(name)


def dedupe_key(owner: str, key: str) -> str:
    return owned_dedupe_key(key, owner)


@pytest.mark.parametrize("made", [repeated_request, lease, dedupe_key])
@given(data=st.data())
def test_different_pairs_have_different_names(
    made: Callable[[str, str], str], data: st.DataObject
) -> None:
    """Also if one is the other with the separator elsewhere, or without it."""
    one = data.draw(PAIRS)
    text = "".join(one)
    others = [(text[:at], text[end:]) for at in range(1, len(text)) for end in (at, at + 1)]
    pairs = {one, *(pair for pair in others if all(pair)), data.draw(PAIRS)}
    # With what one of them becomes for a prefix of its own, too.
    pairs |= {(made(*pair)[: -len(pair[1]) - 1] or "x", pair[1]) for pair in list(pairs)}
    pairs |= {(one[0], made(*one)), (made(*one), one[1])}
    assert len({made(*pair) for pair in pairs}) == len(pairs)


@given(PAIRS)
def test_an_identity_is_no_address(pair: tuple[str, str]) -> None:
    """Which of both a parked request is counted for."""
    names = {client_key(each, "") for each in pair} | {client_key(None, each) for each in pair}
    assert len(names) == 2 * len(set(pair))


@given(st.lists(PARTS, min_size=1, max_size=5).map("".join))
def test_stores_of_one_server_share_no_keys(prefix: str) -> None:
    """All keys of signals and of jobs begin with a tag of theirs, and those of leases with none."""
    tags, leases = [], []
    for each in (
        prefix,
        f"{prefix}:signals",
        f"{prefix}:jobs",
        f"{prefix}:signals:0",
        f"x{prefix}",
    ):
        tags.append(RedisSignals(URL, each).pending_fires._key.removesuffix("pending"))
        tags.append(RedisJobStore(URL, each)._shards.all[0].tag)
        leases.append(lease(each, "name"))
    assert not any(a.startswith(b) or b.startswith(a) for a, b in combinations(tags, 2))
    assert not any(key.startswith(tag) for key in leases for tag in tags)
