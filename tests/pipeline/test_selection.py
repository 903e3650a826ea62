"""Reports on a part of the data: of a time, of labels, by a label, beside another part."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import duckdb
import pytest
from pyspark.sql import SparkSession

from purgatory.pipeline.__main__ import main
from purgatory.pipeline.errors import NothingToReadError
from purgatory.pipeline.rollups.wait_tables import JOB
from purgatory.pipeline.run import Run
from purgatory.pipeline.schemas import OUTCOME_SCHEMA
from purgatory.pipeline.sql.duck import connected
from purgatory.pipeline.sql.outcomes import OF_POLLS
from purgatory.pipeline.sql.selection import Selection
from tests.pipeline.rolled import START, waits, write_outcomes
from tests.pipeline.synthetic import Written, write

BY_TENANT = Selection(by="tenant", where=(("version", "1.2"),), depth=2)


@pytest.fixture(scope="module")
def labelled(tmp_path_factory: pytest.TempPathFactory) -> tuple[Written, Path]:
    """A journal with labels, and its outcomes."""
    folder = tmp_path_factory.mktemp("labelled")
    written = write(folder / "journal", operations=3_000, hours=2.0, tenants=3)
    run = Run(str(folder / "out"), connected(threads=1), journal=str(written.folder))
    run.update()
    return written, folder / "out"


def ended(at_s: float, wait_s: float, **more: Any) -> dict[str, Any]:
    """Return an outcome of a request that was fired."""
    watched_at = START + timedelta(seconds=at_s)
    completed_at = watched_at + timedelta(seconds=wait_s)
    fired = {"watched_at": watched_at, "completed_at": completed_at, "completed_by": "a"}
    return {"kind": "watch", **fired, **more}


def selected(out: Path, **options: Any) -> tuple[Run, list[dict[str, Any]]]:
    """Return a run on a selection, and its rows by kind."""
    run = Run(str(out), connected(threads=1)).selected(Selection(**options), "selected")
    return run, run.tables.rows(JOB, "by_kind")


@pytest.mark.parametrize("label", ["tenant", "version"])
def test_each_value_has_the_planted_counts(labelled: tuple[Written, Path], label: str) -> None:
    """Requests are grouped by a label's values, and jobs stay what they are."""
    written, out = labelled
    _, rows = selected(out, by=label)
    expected: dict[str, list[int]] = {}
    for kind, truth in written.truth.kinds.items():
        for value, counts in truth.by_label.items():
            if value.startswith(label):
                name = kind if kind.startswith("job:") else value
                known = expected.setdefault(name, [0, 0])
                expected[name] = [known[0] + counts[0], known[1] + counts[1]]
    assert {row["kind"]: [row["operations"], row["expired"]] for row in rows} == expected


def test_labels_and_times_choose_operations(labelled: tuple[Written, Path]) -> None:
    """All conditions together; what begins at `until` is not of it."""
    written, out = labelled
    _, rows = selected(out, where=(("tenant", "t1"),))
    found = {row["kind"]: (row["operations"], row["expired"]) for row in rows}
    truth = written.truth.kinds
    assert found == {name: kind.by_label["tenant=t1"] for name, kind in truth.items()}
    middle = START + timedelta(minutes=40)
    halves = [selected(out, since=middle)[1], selected(out, until=middle)[1]]
    totals = [sum(row["operations"] for row in rows) for rows in halves]
    assert sum(totals) == written.truth.operations and min(totals) > 1_000
    with pytest.raises(NothingToReadError, match=r"no operation of the selection: tenant=nobody\."):
        selected(out, where=(("tenant", "nobody"),))
    with pytest.raises(NothingToReadError, match="since 2030-01-01 00:00 UTC"):
        selected(out, since=datetime(2030, 1, 1, tzinfo=UTC))


def test_both_engines_select_the_same_on_spark(
    labelled: tuple[Written, Path], spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tables of waits, late fires and the slowest waits, with prefixes of two segments."""
    out = labelled[1]
    # On one machine they would be DuckDB's.
    monkeypatch.setattr("purgatory.pipeline.run.is_for_one_process", lambda *_: False)
    found = []
    for engine in (connected(threads=1), spark):
        run = Run(str(out), engine).selected(BY_TENANT, "selected")
        examples = run.examples()
        rows = [[*map(dict, map(_as_dict, of))] for of in (examples.slowest, examples.late_fires)]
        tables = ("by_kind", "by_key_prefix", "hot_keys", "wait_counts")
        found.append([sorted(run.tables.rows(JOB, name), key=repr) for name in tables] + rows)
    assert found[0] == found[1]
    assert len(found[0][0]) == 4 and len(found[0][4]) == len(found[0][5]) == 10


def _as_dict(row: Any) -> dict[str, Any]:
    found = row if isinstance(row, dict) else row.asDict()
    # Spark's times are naive, in the zone of this machine.
    return {
        name: value.astimezone(UTC) if isinstance(value, datetime) else value
        for name, value in found.items()
    }


def test_rare_values_are_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And operations without the label are another one."""
    monkeypatch.setattr("purgatory.pipeline.sql.selection.MOST_VALUES", 1)
    labels = [[("t", "a")]] * 3 + [[("t", "b")]] * 2 + [[("t", "c")], None, [("u", "a")]]
    rows = [ended(place, 1, labels=of) for place, of in enumerate(labels)]
    write_outcomes(tmp_path, rows, as_of=START + timedelta(hours=1))
    found = {row["kind"]: row["operations"] for row in selected(tmp_path, by="t")[1]}
    assert found == {"t=a": 3, "t=(other)": 3, "t=(none)": 2}


def test_a_late_fire_and_the_traces_of_those_it_ended_are_shown(tmp_path: Path) -> None:
    """One fire of 30 s ended the tail; other fires of that key did not."""
    quick = [ended(place, 1, keys=["b"], completed_by="b") for place in range(980)]
    late = [ended(1_000, 30, labels=[("trace", f"{place:032x}")]) for place in range(10)]
    write_outcomes(tmp_path, [*quick, *late], as_of=START + timedelta(hours=1))
    found = selected(tmp_path)[0].examples()
    [fire] = found.late_fires
    assert (fire["key"], fire["operations"], fire["wait_us"]) == ("a", 10, 30_000_000)
    assert fire["at_time"] == START + timedelta(seconds=1_030)
    traces = {dict(row["labels"])["trace"] for row in found.slowest}
    assert traces == {f"{place:032x}" for place in range(10)}


@pytest.fixture
def two_weeks(tmp_path: Path) -> Path:
    """An hour, and the same one a week earlier, with two versions."""
    rows = []
    for week, place in ((week, place) for week in (0, 1) for place in range(400)):
        version = "1.1" if place % 2 else "1.2"
        wait_s = (2 if version == "1.2" else 1) * (1 + week)
        rows.append(ended(week * 604_800 + place, wait_s, labels=[("version", version)]))
    write_outcomes(tmp_path, rows, as_of=START + timedelta(days=7, hours=1))
    return tmp_path


def report(out: Path, *options: str) -> str:
    """Return the text of the report on a selection."""
    assert main(["report", "--out", str(out), "--engine", "duckdb", *options]) == 0
    place = out / "selected" if options else out
    page = (place / "report" / "report.html").read_text(encoding="utf-8")
    return " ".join(re.sub("(?s)<style.*?</style>|<script.*?</script>|<[^>]+>", " ", page).split())


@pytest.mark.usefixtures("no_server")
def test_the_same_hour_last_week_is_beside_each_figure(two_weeks: Path) -> None:
    """If the data covers it, unless something else is asked for."""
    text = report(two_weeks, "--since", f"{START + timedelta(days=7):%Y-%m-%dT%H:%M}")
    assert "Compared with a week before" in text
    assert "watch 400 0.00% was 0.00%" in text and "2.02 s was 1.01 s" in text
    assert "A part of them: since 2026-11-27 06:00 UTC" in text
    first = report(two_weeks, "--since", "2026-11-20", "--until", "2026-11-21")
    assert "Compared with" not in first


@pytest.mark.usefixtures("no_server")
def test_two_versions_are_beside_each_other(
    two_weeks: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With what changed from one to the other; the report on all data stays as it is."""
    options = ("--until", "2026-11-21", "--where", "version=1.2", "--against", "version=1.1")
    text = report(two_weeks, *options)
    assert "Compared with version=1.1" in text
    assert "The p50 of the waits of watch rose from 1.01 s to 2.02 s" in text
    assert "watch 200 " in text
    assert not (two_weeks / "report").exists()
    assert main(["report", "--out", str(two_weeks), "--against", "version=7"]) == 1
    assert "There is no operation of the selection: version=7." in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--since", "yesterday"], "'yesterday': give a time such as 2026-11-20T06:00"),
        (["--where", "tenant"], "'tenant': give LABEL=VALUE"),
        (["--by", "a b"], "'a b': give the name of a label, or kind or worker"),
        (["--against", "month"], "'month': give LABEL=VALUE"),
        (["--prefix-depth", "0"], "give a whole number of 1 or more"),
    ],
)
def test_options_are_checked(
    options: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Before anything is read."""
    with pytest.raises(SystemExit):
        main(["report", "--out", "/nowhere", *options])
    assert sentence in capsys.readouterr().err


def test_a_value_is_no_sql(labelled: tuple[Written, Path], duck: duckdb.DuckDBPyConnection) -> None:
    """Whatever stands in it."""
    odd = Selection(where=(("tenant", "x' OR 'a' = 'a"),))
    duck.execute("CREATE TABLE known AS SELECT 'a' AS kind, NULL::MAP(VARCHAR, VARCHAR) AS labels")
    query = odd.query("known")
    assert "'x'' OR ''a'' = ''a'" in query
    with pytest.raises(NothingToReadError):
        Run(str(labelled[1]), connected(threads=1)).selected(odd, "selected")


@pytest.fixture(scope="module")
def polls(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """300 clients that wait 65 s each for their keys, in polls of 25 s, and one that gives up.

    Also two waits of one client, and a poll without a name.
    """
    out = tmp_path_factory.mktemp("polls")
    rows = []
    for client in range(301):
        key, named = f"order:{client}", {"labels": [("wait", f"w{client}")]}
        for number in range(3):
            wait_s = 25 if number < 2 or client == 300 else 15
            how = {"outcome": "expired", "completed_by": None} if wait_s == 25 else {}
            poll = ended(client * 2 + number * 25.02, wait_s, keys=[key], **named, **how)
            rows.append(poll | {"deadline": poll["watched_at"] + timedelta(seconds=25)})
    rows += [ended(at_s, 1, keys=["b"], labels=[("wait", "twice")]) for at_s in (0, 5)]
    rows.append(ended(0, 1, keys=["c"]))
    write_outcomes(out, rows, as_of=START + timedelta(hours=1))
    return out


def test_polls_are_one_wait(polls: Path) -> None:
    """The last one has the time since the first, and says how the wait ended."""
    [row], [poll] = waits(polls, "by_kind", "polls")
    assert (row["operations"], row["fired"], row["expired"]) == (304, 303, 1)
    assert row["wait_us_p50"] == pytest.approx(65_040_000, rel=0.002)
    assert row["timeout_us_p50"] == pytest.approx(75_040_000, rel=0.002)
    assert (poll["operations"], poll["fired"], poll["expired"]) == (905, 302, 603)
    assert poll["wait_us_p50"] == 25_000_000
    run, [selected_row] = selected(polls, where=(("kind", "watch"),))
    assert selected_row == row
    assert run.examples().slowest[0]["wait_us"] == 65_040_000


def test_each_poll_is_parked(polls: Path) -> None:
    """Whatever it is a part of: places and arrivals are for requests."""
    [rows] = waits(polls, "parked")
    assert sum(row["began"] for row in rows) == 906


def test_a_wait_goes_on_in_the_next_hour(tmp_path: Path) -> None:
    """Which is known only in a later run, and changes the hour before."""
    key = {"keys": ["order"], "labels": [("wait", "one")]}
    expired = {"outcome": "expired", "completed_by": None}
    write_outcomes(tmp_path, [ended(3_570, 25, **key, **expired)], as_of=START)
    [[row]] = waits(tmp_path, "by_kind")
    assert (row["operations"], row["expired"]) == (1, 1)
    write_outcomes(tmp_path, [ended(3_600, 10, **key)], as_of=START)
    [row], [poll], [hour] = waits(tmp_path, "by_kind", "polls", "by_hour")
    assert (row["operations"], row["fired"], row["wait_us_max"]) == (1, 1, 40_000_000)
    assert (poll["operations"], poll["fired"], poll["wait_us_max"]) == (2, 1, 25_000_000)
    assert hour["hour"] == START + timedelta(hours=1)


def test_polls_are_joined_on_spark_as_well(polls: Path, spark: SparkSession) -> None:
    """Row by row, whatever is unknown of one."""
    found = []
    for engine in (connected(threads=1), spark):
        rows = [_as_dict(row) for row in Run(str(polls), engine).rows(Selection().query)]
        found.append(sorted(rows, key=lambda row: str(row["operation_id"])))
    assert found[0] == found[1]
    assert sum(row["is_continued"] for row in found[0]) == 602
    assert [*found[0][0]] == [*OUTCOME_SCHEMA.names, *OF_POLLS]


@pytest.mark.usefixtures("no_server")
def test_the_report_has_both_views_the_wait_first(polls: Path) -> None:
    """300 waits that ended well are not 67 % expired."""
    waits(polls)
    assert main(["advise", "--out", str(polls)]) == 0
    text = report(polls)
    assert "watch 304 99.67% 0.33%" in text
    assert "Polls, each for itself" in text and "watch 905 33.37% 66.63%" in text
    assert "of watch expired" not in text.partition("What was read")[0].replace("share", "")
