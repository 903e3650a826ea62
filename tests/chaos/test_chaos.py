"""The short form: some kills, and no broken promise."""

from pathlib import Path

import pytest

from tests.chaos.storm import Plan
from tests.chaos.trial import MACHINES, run_trial
from tests.nightly import NIGHTLY, by_night

PLAN = Plan(
    jobs=by_night(400, 80),
    service_kills=by_night(3, 1),
    store_kills=1,
    freezes=by_night(2, 1),
    cuts=1,
    pauses=1,
    seed=20,
    keys=60,
    longest_delay=by_night(5.0, 3.0),
)


# By day SQLite is killed in test_commits.py.
@pytest.mark.parametrize(
    "kind",
    [pytest.param(kind, marks=[NIGHTLY] * (kind == "sqlite")) for kind in sorted(MACHINES)],
)
async def test_every_promise_is_kept(kind: str, tmp_path: Path) -> None:
    """Nothing acknowledged is lost, nothing early, nothing after its cancel, one outcome each."""
    said: list[str] = []
    verdict = await run_trial(kind, PLAN, tmp_path, said.append)
    assert verdict.faults == [], (said, str(verdict))
    # The storm was one: jobs of every outcome went through it.
    assert verdict.acknowledged >= PLAN.jobs
    assert verdict.outcomes.keys() >= {"expired", "fired", "cancelled"}
    assert verdict.retried
