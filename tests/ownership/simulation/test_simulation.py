"""A short storm over simulated workers; `make chaos-ownership` has the long one."""

import logging

import pytest

from tests.nightly import by_night
from tests.ownership.generation_ledger import GenerationLedger
from tests.ownership.simulation.storm import run_storm


def test_no_generation_has_two_owners(caplog: pytest.LogCaptureFixture) -> None:
    """Whatever is killed, suspended, cut off, delayed or repeated; and members always return."""
    caplog.set_level(logging.CRITICAL)
    wanted = by_night(50, 20)
    report, faults = run_storm(seed=1, faults=wanted)
    assert faults == []
    assert report.faults.total() >= wanted
    assert report.owners > 10 and report.generations >= report.owners


def test_the_ledger_notices() -> None:
    """Two owners of a generation, one that was not committed, and one that goes back."""
    ledger = GenerationLedger(knows_commits=True)
    ledger.commit("g", 5, 5)
    ledger.hand_out("g", 5, 5)
    ledger.receive("g", "m", 5)
    assert ledger.faults == []
    ledger.hand_out("g", 5, 7)
    ledger.commit("g", 4, 4)
    ledger.receive("g", "m", 4)
    ledger.handed_out["g", 6] = {4}
    ledger.check_order()
    assert [fault.partition(":")[2].split()[0:2] for fault in ledger.faults] == [
        ["generation", "5"],
        ["generation", "5"],
        ["4", "by"],
        ["m", "got"],
        ["generation", "6"],
    ]
