"""The command line, from a journal to a report, with everything in between."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from purgatory.pipeline.__main__ import main
from purgatory.pipeline.spark.tables import Tables
from tests.pipeline.spark_servers import PLACE
from tests.pipeline.synthetic import Written, write
from tests.synthetic_journal import inject

PLOTS = {"outcomes", "percentiles", "heat", "parked", "waits", "lateness"}
CHARTS = {"survival", *PLOTS, *(f"jobs-{name}" for name in PLOTS)}


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Written:
    """A journal with a crash and a broken file."""
    written = write(
        tmp_path_factory.mktemp("small") / "journal", operations=6_000, hours=1.5, crashes=(0.5,)
    )
    inject(written.folder, "truncated")
    return written


@pytest.fixture(scope="module")
def out(
    spark: SparkSession, small: Written, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, str]:
    """Where `report --journal` put its results, and what it said."""
    out = tmp_path_factory.mktemp("report")
    said: list[str] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.stdout.write", said.append)
        places = ["--journal", str(small.folder), "--out", str(out)]
        assert main(["report", *places]) == 0
    return out, "".join(said)


class Elements(HTMLParser):
    """Every element with its attributes, as a browser reads them."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))

    def values(self, *names: str) -> list[str]:
        return [attrs[name] or "" for _, attrs in self.found for name in names if name in attrs]


def page_of(out: tuple[Path, str]) -> str:
    return (out[0] / "report" / "report.html").read_text()


def test_one_command_does_everything(out: tuple[Path, str], small: Written) -> None:
    """From the journal to the page; it says what was left out, what is advised, and where it is."""
    folder, said = out
    assert f"{small.truth.operations:,} operations" in said
    assert "Skipped files: 1" in said and "zz-truncated.parquet" in said
    assert re.search(r"^park: With [\d.]+ s, 1\.00% would expire", said, re.MULTILINE)
    assert f"The report is {folder}/report/report.html" in said
    advice = json.loads((folder / "advice" / "advice.json").read_text())
    parked = {kind for kind in small.truth.kinds if not kind.startswith("job:")}
    assert {timeout["kind"] for timeout in advice["timeouts"]} == parked


def test_the_advised_timeout_is_that_of_the_generator(
    out: tuple[Path, str], small: Written
) -> None:
    """The wait that was drawn is within the interval, though a third was cut short."""
    advice = json.loads((out[0] / "advice" / "advice.json").read_text())
    park = next(found for found in advice["timeouts"] if found["kind"] == "park")
    kind = next(kind for kind in small.journal.kinds if kind.name == "park")
    assert park["low_us"] <= kind.quantile(0.99) * 1e6 * 1.01
    assert kind.quantile(0.99) * 1e6 <= park["high_us"] * 1.01


def test_the_page_stands_alone(out: tuple[Path, str]) -> None:
    """Nothing in it leads out of it, and its own policy would forbid it."""
    page = page_of(out)
    elements = Elements(page)
    tags = {tag for tag, _ in elements.found}
    assert tags.isdisjoint({"iframe", "object", "embed", "img", "audio", "video", "link rel"})
    links = elements.values("href", "src", "xlink:href", "data", "action", "poster", "srcset")
    assert [link for link in links if not link.startswith(("#", "data:,"))] == []
    assert elements.values("style", "onclick", "onload") == []
    assert "@import" not in page and "url(" not in page
    policy = elements.values("content")[0]
    assert "default-src 'none'" in policy and "unsafe" not in policy
    # The library's licence asks for its notice in each copy.
    assert "Copyright (c) 2022 Leon Sorokin" in page


def test_shares_at_the_top_are_those_of_requests(out: tuple[Path, str]) -> None:
    """A job that runs at its deadline has expired, and is as it should be."""
    shown = dict(re.findall(r"<div><dt>([^<]+)</dt><dd>([^<]+)</dd></div>", page_of(out)))
    found = Tables(str(out[0])).rows("waits", "by_kind")
    requests = [row for row in found if not row["kind"].startswith("job:")]
    total = sum(row["operations"] for row in requests)
    assert shown["parked requests"] == f"{total:,}" and len(requests) < len(found)
    for name in ("fired", "expired"):
        share = sum(row[name] for row in requests) / total
        assert shown[f"{name} requests"] == f"{share:.1%}"


def test_the_page_can_be_read_without_seeing_it(out: tuple[Path, str]) -> None:
    """Charts have a title, a description and a table; ids are unique; cells have headers."""
    elements = Elements(page_of(out))
    ids = elements.values("id")
    assert len(ids) == len(set(ids))
    plots = [attrs for _, attrs in elements.found if "data-chart" in attrs]
    assert len(plots) == len(CHARTS)
    for attrs in plots:
        labels = {attrs["aria-labelledby"], attrs["aria-describedby"]}
        assert attrs["role"] == "group" and len(labels) == 2 and labels <= set(ids)
    assert {link.removeprefix("#") for link in elements.values("href")} <= {*ids, "data:,"}
    tables = [tag for tag, _ in elements.found if tag in {"table", "caption"}]
    assert tables.count("table") == tables.count("caption") > len(CHARTS)
    assert all("scope" in attrs for tag, attrs in elements.found if tag == "th")
    assert ("html", {"lang": "en"}) in elements.found


def test_the_broken_file_is_on_the_page(out: tuple[Path, str], small: Written) -> None:
    """Whoever reads the report learns what is not in it, and that a worker died."""
    page = page_of(out)
    assert "1 file could not be read" in page
    assert "zz-truncated.parquet" in page
    lost = sum(kind.unfinished for kind in small.truth.kinds.values())
    assert f"{lost:,} operations without an end 15 min after the deadline, of killed" in page
    assert f"<code>{small.folder}</code>" in page


def test_again_without_the_journal(
    spark: SparkSession, out: tuple[Path, str], capsys: pytest.CaptureFixture[str]
) -> None:
    """From results that are there, advice can be had anew with other wishes."""
    arguments = ["advise", "--out", str(out[0]), "--targets", "expired=20%"]
    assert main(arguments) == 0
    said = capsys.readouterr()
    assert "20.00% would expire" in said.out
    assert re.search(r"^ +[\d.]+ s  done$", said.err, re.MULTILINE)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (
            ["outcomes", "--journal", "{}/none", "--out", "{}/out"],
            "No journal in {}/none: there is ",
        ),
        (["outcomes", "--journal", "{}/none", "--out", "{}/out"], "no such folder"),
        (["outcomes", "--journal", "{}", "--out", "{}-out"], "PURGATORY_JOURNAL_MAX_AGE"),
        (["waits", "--out", "{}/out"], "run the job `outcomes`"),
        (["advise", "--out", "{}/out"], "run the job `waits` first"),
        (["report", "--out", "{}/out"], "run the job `waits` first"),
        (["outcomes", "--journal", "nosuch://x/y", "--out", "{}/out"], 'scheme "nosuch"'),
    ],
)
def test_what_is_missing_is_said_in_a_sentence(
    spark: SparkSession,
    arguments: list[str],
    sentence: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """What the user can mend is a line on stderr and the status 1, and no stack trace."""
    assert main([argument.format(tmp_path) for argument in arguments]) == 1
    said = capsys.readouterr().err
    assert sentence.format(tmp_path) in said
    assert "Traceback" not in said and "\tat " not in said


@pytest.mark.parametrize("name", ["journal", "out"])
def test_a_file_in_place_of_a_folder_is_said_at_once(
    spark: SparkSession,
    small: Written,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    name: str,
) -> None:
    """By the option's name, before anything is read."""
    path = tmp_path / "part.parquet"
    path.write_bytes(b"")
    folders = {"journal": str(small.folder), "out": str(tmp_path / "out"), name: str(path)}
    arguments = (part for key, value in folders.items() for part in (f"--{key}", value))
    assert main(["outcomes", *arguments]) == 1
    assert f"--{name} {path} is a file: give the folder" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("place", ["", "/results"])
def test_results_do_not_go_into_the_journal(
    spark: SparkSession,
    small: Written,
    capsys: pytest.CaptureFixture[str],
    place: str,
) -> None:
    """The next run would take them for broken files of the journal's."""
    out = f"{small.folder}{place}"
    assert main(["outcomes", "--journal", str(small.folder), "--out", out]) == 1
    said = f"--out {out} is within --journal {small.folder}: give a folder outside"
    assert said in capsys.readouterr().err
    assert not (small.folder / "outcomes").exists()


def test_the_trace_is_told_on_request(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Above the sentence, which is the last line still."""
    assert main(["waits", "--out", str(tmp_path), "--verbose"]) == 1
    said = capsys.readouterr().err
    assert said.startswith("Traceback")
    assert said.splitlines()[-1].startswith("waits: No outcomes in ")


@pytest.mark.skipif(PLACE == "connect", reason="Java and its log are those of the server")
@pytest.mark.parametrize(
    ("logger", "message", "is_told"),
    [
        ("sql.execution.datasources.FileFormatWriter", "Aborting job 1.", False),
        ("util.Utils", "Aborting task", False),
        ("util.Utils", "Uncaught exception in thread 1", True),
    ],
)
def test_spark_does_not_tell_what_we_do(
    spark: SparkSession, tmp_path: Path, logger: str, message: str, is_told: bool
) -> None:
    """A trace above our sentence would hide it; what nobody else tells, Spark does."""
    # Any: py4j's objects have the methods of the Java objects behind them.
    logging: Any = spark._jvm.org.apache.logging.log4j  # type: ignore[union-attr] # it runs
    file = tmp_path / "log"
    appender = (
        logging.core.appender.FileAppender.newBuilder()
        .setName(str(file))
        .withFileName(str(file))
        .build()
    )
    appender.start()
    root = logging.LogManager.getRootLogger()
    root.addAppender(appender)
    logging.LogManager.getLogger(f"org.apache.spark.{logger}").error(message)
    root.removeAppender(appender)
    appender.stop()
    assert (message in file.read_text()) == is_told


def test_a_bad_file_can_end_it(
    spark: SparkSession, small: Written, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With `--on-bad-file refuse` the file is named and nothing is written."""
    arguments = ["outcomes", "--journal", str(small.folder), "--out", str(tmp_path / "out")]
    assert main([*arguments, "--on-bad-file", "refuse"]) == 1
    said = capsys.readouterr().err
    assert "zz-truncated.parquet: not a Parquet file, or cut off" in said
    assert not (tmp_path / "out").exists()


def test_the_title_has_the_time_that_is_covered(out: tuple[Path, str]) -> None:
    """A page that is kept says by itself which minutes it is on, not the hours they are in."""
    title = re.search("<title>(.*)</title>", page_of(out))
    assert title is not None
    assert title[1].endswith(", 2026-11-20 06:00 to 2026-11-20 07:29 UTC")
