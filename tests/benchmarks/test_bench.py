"""The benchmarks of the core: they run, compare like with like, and print what they found."""

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest

import purgatory
from purgatory.__main__ import main as purgatory_command
from purgatory.bench import Row as LibraryRow
from purgatory.bench import measure
from purgatory.bench import table as library_table
from purgatory.testing import AutojumpEventLoop
from purgatory.timer import compiled
from tests.benchmarks.comparison.process import Collector
from tests.benchmarks.comparison.row import Row, Spread, Target, Verdict, compare, figures, number
from tests.benchmarks.core.contenders.hand_made import HandMade
from tests.benchmarks.core.contenders.heap_timer import HeapTimer
from tests.benchmarks.core.contenders.kafka import HIGH, LOW, TIMEOUT_MS, KafkaLoad
from tests.benchmarks.core.race import Race
from tests.benchmarks.core.rows import ROWS
from tests.benchmarks.core.stage import QUICK, Step
from tests.benchmarks.core.stages import STAGES, contenders
from tests.cases import cases
from tests.nightly import by_night

TREE = Path(purgatory.__file__).parent.parent
ROOT = Path(__file__).parents[2]
MEASURED = by_night([*STAGES], ["outstanding", "lateness", "watching"])


@pytest.fixture
def anyio_backend() -> tuple[str, dict[str, object]]:
    return "asyncio", {"loop_factory": AutojumpEventLoop}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files of a run that is a thousandth of a quick one, in the form that is tested."""
    folder = tmp_path_factory.mktemp("bench")
    command = [sys.executable, "-P", "-m", "tests.benchmarks.core", "--scale", "0.001"]
    command += [f"--stage={name}" for name in MEASURED]
    result = subprocess.run(
        [*command, "--output", str(folder)],
        env=os.environ | {"PYTHONPATH": os.pathsep.join([str(TREE), str(ROOT)])},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    assert all(str(path) in result.stdout for path in folder.iterdir())
    return folder


@pytest.fixture(scope="module")
def form() -> str:
    return "compiled" if compiled else "plain"


@pytest.fixture(scope="module")
def report(folder: Path, form: str) -> dict[str, Any]:
    report: dict[str, Any] = json.loads((folder / f"{form}.json").read_text(encoding="utf-8"))
    return report


def test_a_run_says_what_it_ran_on(report: dict[str, Any], form: str) -> None:
    """A figure without its machine and versions is worth nothing."""
    machine = report["machine"]
    assert machine["form"] == form
    assert all(machine[name] for name in ("python", "uvloop", "system", "processor", "load"))
    assert report["plan"]["mode"] == "quick, scaled by 0.001"


def test_a_run_has_every_row(report: dict[str, Any]) -> None:
    """Each row with its figures, in order; a row with a target has a verdict."""
    rows = [row for row in ROWS if row.stage in MEASURED]
    runnable = [row for row in rows if row.baseline in {None, *contenders(STAGES[row.stage])}]
    assert len(report["rows"]) == len(runnable)
    for row in report["rows"]:
        for name in ("ours", "theirs", "times"):
            spread = row[name]
            assert spread is None or spread["min"] <= spread["median"] <= spread["max"]
        assert (row["target"] is None) == (row["verdict"] == Verdict.NONE)


def test_a_run_of_fires_is_never_early(report: dict[str, Any]) -> None:
    """The one figure that holds at any size."""
    early = [row["ours"]["max"] for row in report["rows"] if "early" in row["title"]]
    assert early
    assert set(early) == {0}


def test_a_run_draws_its_chart(folder: Path, form: str, report: dict[str, Any]) -> None:
    """An SVG image that is well-formed, with a bar for each ratio."""
    root = ET.fromstring((folder / f"{form}.svg").read_text(encoding="utf-8"))
    bars = [rect for rect in root.iter("{http://www.w3.org/2000/svg}rect") if rect.get("x")]
    assert len(bars) == sum(row["times"] is not None for row in report["rows"])


def test_the_small_benchmark_of_the_library_prints_a_row_for_each_operation() -> None:
    """`python -m purgatory bench`: figures of ours and of asyncio's, and how many times faster."""
    rows = asyncio.run(measure(timers=1_000, parks=200))
    assert [row.baseline for row in rows] == ["call_later", "call_later", "wait_for"]
    lines = library_table([*rows, LibraryRow("a title", 10.0, "call_later", 25.0)]).splitlines()
    assert lines[0].split() == ["purgatory", "asyncio", "times", "faster"]
    assert lines[-1].split() == ["a", "title", "10", "ns", "call_later", "25", "ns", "2.5"]
    assert "1,000 outstanding" in lines[1]


def test_the_command_succeeds(monkeypatch: pytest.MonkeyPatch) -> None:
    """However long it takes; here, little."""
    monkeypatch.setattr("purgatory.bench._TIMERS", 1_000)
    monkeypatch.setattr("purgatory.bench._PARKS", 200)
    assert purgatory_command(["bench"]) == 0


@cases("name", STAGES)
def test_every_row_is_measured(name: str) -> None:
    """A row names contenders of its stage, and each stage has a row."""
    rows = [row for row in ROWS if row.stage == name]
    assert rows
    for row in rows:
        assert {row.ours, row.baseline, row.floor} - {None} <= STAGES[name].contenders.keys()


def test_a_contender_that_fails_is_an_error() -> None:
    """A process that ends is reported with its name, not waited for."""
    with (
        Race("idle", Collector.SERVICE, lambda step: None) as race,
        pytest.raises(RuntimeError, match="contender 'idle: purgatory' ended with status 1"),
    ):
        race.run([Step("no such step", 1)])


@cases(
    "target, figure, verdict",
    [
        (Target(10, 10), 10, Verdict.MET),
        (Target(10, 10), 8, Verdict.NEARLY_MET),
        (Target(10, 10), 7.9, Verdict.NOT_MET),
        (Target(10, 10, is_limit=True), 10, Verdict.MET),
        (Target(10, 10, is_limit=True), 12.5, Verdict.NEARLY_MET),
        (Target(10, 10, is_limit=True), 12.6, Verdict.NOT_MET),
        (Target(0, 0, is_limit=True), 0, Verdict.MET),
        (Target(0, 0, is_limit=True), 1, Verdict.NOT_MET),
    ],
)
def test_a_target_is_met_nearly_or_not(target: Target, figure: float, verdict: Verdict) -> None:
    """Below 80 % of a target it is not met, whichever way is better."""
    assert target.judge(figure, is_compiled=True) == verdict


def test_each_form_has_its_own_target() -> None:
    """What the compiled form has to reach is not asked of the plain one."""
    target = Target(19, 4)
    assert target.judge(10, is_compiled=True) == Verdict.NOT_MET
    assert target.judge(10, is_compiled=False) == Verdict.MET


def test_a_ratio_is_that_of_one_round() -> None:
    """Round by round, so that what slows a round down is in both of its figures."""
    row = Row(title="", stage="", measure="m", unit="ns", baseline="them", target=Target(2, 2))
    samples = {"purgatory": {"m": [1.0, 10.0, 2.0]}, "them": {"m": [3.0, 30.0, 8.0]}}
    comparison = compare(row, samples, {}, is_compiled=True)
    assert comparison is not None
    assert comparison.times == Spread(3.0, 3.0, 4.0)
    assert comparison.verdict == Verdict.MET


def test_a_floor_is_taken_off_both_sides() -> None:
    """The cost over something is the difference, ours and theirs."""
    row = Row(title="", stage="", measure="m", unit="ns", baseline="them", floor="bare")
    samples = {"purgatory": {"m": [3.0]}, "them": {"m": [9.0]}, "bare": {"m": [1.0]}}
    comparison = compare(row, samples, {}, is_compiled=True)
    assert comparison is not None
    assert comparison.times == Spread(4.0, 4.0, 4.0)


def test_a_row_without_its_contender_is_left_out() -> None:
    """As where uvloop is not installed."""
    row = Row(title="", stage="", measure="m", unit="ns", baseline="uvloop")
    assert compare(row, {"purgatory": {"m": [1.0]}}, {}, is_compiled=True) is None


def test_figures_have_three_digits() -> None:
    """More would be a precision that no such measurement has."""
    assert [number(n) for n in (0.352, 4.25, 82.31, 1575.4, 0)] == [
        "0.35",
        "4.25",
        "82.3",
        "1,575",
        "0",
    ]
    assert figures(Spread(2, 1, 3), "ns") == "2 ns (1-3)"
    assert figures(Spread(2, 2, 2), "") == "2"


def test_a_plan_scales_its_sizes_but_not_its_rounds() -> None:
    """A tiny run takes every step of a large one."""
    tiny = QUICK.scaled(0.001)
    assert (tiny.timers, tiny.rounds) == (QUICK.timers // 1_000, QUICK.rounds)


def test_the_heap_baseline_is_a_timer() -> None:
    """It runs what is due, in order, without what was cancelled, and drops that when it is half."""
    ran: list[str] = []
    timer = HeapTimer(lambda: now_ns)
    now_ns = 0
    timer.call_later(2, lambda: ran.append("second"))
    timer.call_later(1, lambda: ran.append("first"))
    timer.call_later(9, lambda: ran.append("later"))
    cancelled = [timer.call_later(1, lambda: ran.append("never")) for _ in range(4)]
    for entry in cancelled[:3]:
        timer.cancel(entry)
    timer.clean_up()
    timer.cancel(cancelled[3])
    timer.clean_up()
    now_ns = 5_000_000
    assert (timer.run_due(), ran) == (2, ["first", "second"])


async def test_the_baseline_by_hand_waits_for_a_key_or_a_deadline() -> None:
    """It does what ours does, as far as it goes, and leaves nothing behind."""
    by_hand = HandMade(asyncio.get_running_loop())
    fired = by_hand.wait(("a", "b"), 5)
    expired = by_hand.wait(("a",), 1)
    await asyncio.sleep(2)
    assert (expired.future.result(), fired.future.done()) == (False, False)
    assert (by_hand.fire("b"), by_hand.fire("a")) == (1, 0)
    assert fired.future.result() is True
    assert by_hand._waiters == {}


@cases("load, expired", [(LOW, 0.078), (HIGH, 0.5)])
def test_the_load_is_that_of_kafka(load: KafkaLoad, expired: float) -> None:
    """The published settings let so many expire; the same load each time."""
    events = load.events(20_000)
    completed = sum(not is_arrival for _, _, is_arrival in events)
    assert abs(1 - completed / 20_000 - expired) < 0.01
    assert events == sorted(events)
    assert events == load.events(20_000)
    assert len(set(load.keys())) == 3
    assert TIMEOUT_MS == 200
