"""What may be given as a server of Redis."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import redis

from purgatory.jobs.redis import RedisJobStore
from purgatory.ownership.redis import RedisLeaseStore
from purgatory.signals.redis import RedisSignals
from tests.cases import cases


@cases("make", [RedisSignals, RedisJobStore, RedisLeaseStore])
@cases(
    "given, shown",
    [
        (5, "5 of <class 'int'>"),
        (None, "None of <class 'NoneType'>"),
        (b"redis://:secret@localhost", r"\*\*\*@localhost' of <class 'bytes'>"),
        (redis.Redis(), "of <class 'redis.client.Redis'>"),
    ],
)
def test_what_is_no_server_is_refused(
    make: Callable[[Any], object], given: Any, shown: str
) -> None:
    """By the value, without a password, and what to give."""
    with pytest.raises(TypeError, match=f'{shown}: give a URL, such as "redis://') as caught:
        make(given)
    assert "secret" not in str(caught.value)
