"""What may be asked for as a job, and how it is refused."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from purgatory import InvalidKeyError
from purgatory.jobs import InvalidDeadlineError, InvalidJobError, InvalidPayloadError, JobLimits
from purgatory.jobs.model.deadline import Deadline
from purgatory.jobs.model.job import bounded_error, new_job_id
from purgatory.jobs.model.spec import NAME_LENGTH, JobSpec
from tests.cases import cases

LIMITS = JobLimits(max_payload_bytes=100, max_keys=2, max_attempts=5)
RECURSIVE: list[Any] = []
RECURSIVE.append(RECURSIVE)


def spec(handler: Any = "note", payload: Any = None, **options: Any) -> JobSpec:
    if "at" not in options:
        options.setdefault("delay", 1)
    return JobSpec.of(handler, payload, wall_ms=0, limits=LIMITS, **options)


@cases(
    "payload, complaint",
    [
        ("x" * 99, "takes 101 bytes as JSON, more than the limit of 100"),
        ("\u00e4" * 50, "takes 102 bytes"),
        (float("nan"), "not JSON"),
        ("\ud800", "not JSON"),
        ({1, 2}, "not JSON"),
        (b"", "not JSON"),
        (RECURSIVE, "within each other"),
    ],
)
def test_a_payload_is_json_of_a_bounded_size(payload: Any, complaint: str) -> None:
    """The error says what is wrong, and what to give instead."""
    with pytest.raises(InvalidPayloadError, match=complaint):
        spec(payload=payload)


@cases("payload", ["x" * 98, None, {"a": [1, 2.5, True]}, "\x00"])
def test_a_payload_is_stored_compactly(payload: Any) -> None:
    """It comes back as it was, up to the limit itself."""
    stored = spec(payload=payload)
    assert " " not in stored.payload_json and "\x00" not in stored.payload_json
    assert stored.job(0, 1).payload == payload


@cases("delay", [-1, -1e-9, float("nan"), float("inf"), 4e8, 10**400])
def test_a_delay_is_a_finite_number_of_seconds(delay: float) -> None:
    """From zero to ten years."""
    with pytest.raises(InvalidDeadlineError, match=r"from 0 to 315619200"):
        spec(delay=delay)
    with pytest.raises(InvalidDeadlineError, match="ceiling"):
        spec(ceiling=delay)


@cases(
    "options",
    [
        {"delay": "1"},
        {"delay": True},
        {"delay": None, "at": 17},
        {"handler": 3},
        {"keys": "k"},
        {"keys": [3]},
        {"dedupe_key": 3},
        {"max_attempts": 1.5},
        {"max_attempts": True},
    ],
)
def test_what_is_of_the_wrong_type_is_a_type_error(options: dict[str, Any]) -> None:
    """And not a job."""
    with pytest.raises(TypeError):
        spec(**options)


@cases(
    "options, complaint",
    [
        ({"handler": ""}, "no name"),
        ({"handler": "x" * 257}, "no name"),
        ({"handler": "a\n"}, "no name"),
        ({"keys": ["a", "b", "c"]}, "up to 2 keys; this one has 3"),
        ({"on_fire": "stop"}, "on_fire is 'stop': give one of 'run', 'cancel'"),
        ({"on_fire": "cancel"}, "on_fire is 'cancel', and there are no keys: give the keys that"),
        ({"misfire": "never"}, "'run', 'skip', 'spread'"),
        ({"on_conflict": ""}, "'error', 'replace', 'keep'"),
        ({"on_conflict": "keep"}, "on_conflict is 'keep'.*give a dedupe_key"),
        ({"on_conflict": "replace"}, "on_conflict is 'replace'.*give a dedupe_key"),
        ({"max_attempts": 0}, "from 1 to 5"),
        ({"max_attempts": 6}, "from 1 to 5"),
    ],
)
def test_what_is_not_allowed_is_named(options: dict[str, Any], complaint: str) -> None:
    """With the limit, or the choices."""
    with pytest.raises(InvalidJobError, match=complaint):
        spec(**options)


@cases("options", [{"keys": ["\x00"]}, {"dedupe_key": ""}])
def test_keys_are_watch_keys(options: dict[str, Any]) -> None:
    """Whatever may be parked on may be waited on by a job."""
    with pytest.raises(InvalidKeyError):
        spec(**options)


def test_a_deadline_is_a_delay_or_a_moment() -> None:
    """One of the two."""
    now = datetime.now(UTC)
    for delay, at in ((None, None), (1.0, now)):
        with pytest.raises(InvalidDeadlineError, match="exactly one") as refused:
            Deadline.of(delay=delay, at=at)
        # As they were given: nobody asked in milliseconds.
        assert at is None or f"delay is 1.0 and at is {at.isoformat()}:" in refused.value.detail
    with pytest.raises(InvalidDeadlineError, match="exactly one"):
        Deadline()


def test_a_moment_says_its_zone() -> None:
    """Else it could be anywhere within a day; with a zone, any will do."""
    with pytest.raises(InvalidDeadlineError, match="without a zone"):
        spec(at=datetime(2030, 1, 1))
    zone = timezone(timedelta(hours=5, minutes=30))
    assert Deadline.of(delay=None, at=datetime(1970, 1, 1, 5, 30, 1, tzinfo=zone)).at_ms == 1_000


@given(microseconds=st.integers(0, 10**15))
def test_deadlines_are_rounded_up(microseconds: int) -> None:
    """Never early, and less than a millisecond late."""
    at = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=microseconds)
    at_ms = Deadline.of(delay=None, at=at).at_ms
    assert at_ms is not None and 0 <= at_ms * 1_000 - microseconds < 1_000


@given(ms=st.integers(0, 10**9))
def test_whole_milliseconds_stay_as_they_are(ms: int) -> None:
    """Binary fractions do not add one."""
    assert Deadline.of(delay=ms / 1_000, at=None).delay_ms == ms


@cases("at_ms", [-(10**18), -100_000, 10**18])
def test_a_moment_that_is_out_of_range_is_named(at_ms: int) -> None:
    """Even one that no calendar has."""
    with pytest.raises(InvalidDeadlineError, match=r"1970|1969"):
        Deadline(at_ms=at_ms).resolve(0, LIMITS)


def test_ids_sort_by_time_and_are_not_guessed() -> None:
    """128 bits as text, 64 of them random; within a millisecond they sort as they were made."""
    ids = [new_job_id(ms) for ms in (0, 1, 255, 256, 1_800_000_000_000)]
    assert ids == sorted(ids)
    assert {len(job_id) for job_id in ids} == {32}
    ids = [new_job_id(0) for _ in range(1_000)]
    assert ids == sorted(ids)
    assert len({job_id[-16:] for job_id in ids}) == 1_000


@given(error=st.text(st.characters(codec=None)))
def test_errors_are_text_that_every_store_keeps(error: str) -> None:
    """Bounded, no NUL, no surrogates."""
    kept = bounded_error(error, 20)
    assert kept is not None and len(kept) <= 20 and "\x00" not in kept
    assert kept.encode().decode() == kept


@cases("bad", [0, -1, 1.5, float("nan"), True])
def test_limits_are_whole_numbers_above_zero(bad: Any) -> None:
    """The error names the limit."""
    with pytest.raises(ValueError, match=f"max_keys is {bad!r}"):
        JobLimits(max_keys=bad)


NAME_PARTS = st.none() | st.integers(0, 9) | st.text('",[]\\/:~\1 a0', max_size=4)


@given(st.lists(st.lists(NAME_PARTS, max_size=3).map(tuple), min_size=2, max_size=2, unique=True))
def test_no_two_requests_have_the_same_name(names: list[tuple[Any, ...]]) -> None:
    """Whatever separators are in their parts; and the same parts are the same name."""
    spec = JobSpec.of("note", wall_ms=0, delay=1)
    first, second = (spec.of_request(*name).request for name in names)
    assert first is not None and second is not None and first.name != second.name
    again = JobSpec.of("note", wall_ms=9, delay=1).of_request(*names[0])
    assert again.request == first and again.id != spec.id
    assert len(first.name) == NAME_LENGTH


ASKED: dict[str, Any] = {
    "delay": 5,
    "keys": ["k"],
    "max_attempts": 3,
    "idempotency_key": "k",
}


@cases(
    "change",
    [
        {"delay": 6},
        {"at": datetime(1970, 1, 1, 0, 0, 9, tzinfo=UTC), "delay": None},
        {"keys": ["l"]},
        {"max_attempts": 4},
        {"ceiling": 60},
        {"dedupe_key": "d"},
        {"misfire": "skip"},
        {"on_fire": "cancel"},
    ],
)
def test_another_request_is_told_by_what_it_asks_for(change: dict[str, Any]) -> None:
    """Whatever differs."""
    first = JobSpec.of("note", 1, wall_ms=0, **ASKED).request
    same = JobSpec.of("note", 1, wall_ms=9, **ASKED).request
    other = JobSpec.of("note", 1, wall_ms=9, **ASKED | change).request
    assert first is not None and other is not None
    assert same == first and other.name == first.name
    assert other.fingerprint != first.fingerprint
