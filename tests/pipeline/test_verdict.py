"""The verdict of the report: what to change first, with the setting."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from purgatory.pipeline.outcomes.event_summary import FutureRecords
from purgatory.pipeline.outcomes.manifest import Manifest
from purgatory.pipeline.report.verdict import SHOWN_CHANGES, verdict
from tests.pipeline.test_charts import NOTHING


def timeout(kind: str, operations: int, advised_us: int | None) -> dict[str, Any]:
    """Return the advice on a kind with a timeout of 25 s."""
    row = {"kind": kind, "operations": operations, "advised_us": advised_us}
    return row | {"timeout_us": 25_000_000, "reason": f"why {kind}"}


def kind_row(operations: int, lost: int) -> dict[str, Any]:
    return {"kind": "park", "operations": operations, "lost": lost}


def test_nothing_to_change_is_no_change() -> None:
    """Timeouts that fit, one worker and the default wheel."""
    advice = {
        "timeouts": [timeout("park", 100, 24_000_000), timeout("watch", 100, None)],
        "workers": {"workers": 1, "reason": ""},
        "geometry": {"advised": None, "default": None},
    }
    found = replace(NOTHING, by_kind=[kind_row(200, 0)], advice=advice)
    assert verdict(found) == []


def test_the_most_important_come_first_with_their_settings() -> None:
    """Wrong data before missing workers, before timeouts by their operations."""
    wheel = {"tick_ms": 1, "wheel_size": 512}
    advice = {
        "timeouts": [timeout("park", 10, 12_500_000), timeout("watch", 90, 50_000_000)],
        "workers": {"workers": 8, "reason": "the peak"},
        "geometry": {"advised": wheel, "default": {}, "reason": ""},
    }
    rows = [kind_row(100, 0)]
    found = verdict(replace(NOTHING, by_kind=rows, advice=advice))
    assert [change.setting for change in found] == [
        "make run WORKERS=8 PURGATORY_SIGNALS=redis://localhost:6379",
        "WaitSettings(default_wait=50)",
        "timeout=12.5  # of kind park",
    ]
    few = advice | {"timeouts": [timeout("park", 10, 12_500_000)]}
    last = verdict(replace(NOTHING, by_kind=[kind_row(10_000, 0)], advice=few))[-1]
    assert last.setting == "Purgatory(tick_ms=1, wheel_size=512)"
    assert last.why.endswith("The service has no setting for it.")
    future = {"w-3": FutureRecords(2, "2099-01-01", "2099-01-01")}
    found = verdict(
        replace(
            NOTHING, by_kind=[kind_row(100, 50)], advice=advice, manifest=Manifest(future=future)
        )
    )
    assert len(found) == SHOWN_CHANGES
    assert [change.what for change in found[:2]] == [
        "Correct the clock of w-3",
        "Find out why workers die",
    ]
