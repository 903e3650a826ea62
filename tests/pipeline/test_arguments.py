"""The command line before Spark is started: what is refused at once, and what --help says."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from purgatory.pipeline import __main__ as command_line
from purgatory.pipeline.__main__ import main
from purgatory.pipeline.cli import command as cli_command
from purgatory.pipeline.cli.command import heap, master, shown
from purgatory.pipeline.cli.commands import COMMANDS
from purgatory.pipeline.errors import PipelineError
from purgatory.pipeline.run import machine_memory
from tests.house.imports import ROOT
from tests.nightly import NIGHTLY


@pytest.fixture(autouse=True)
def no_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither Java nor Spark is so much as looked for."""

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("Spark was started")

    monkeypatch.setattr(command_line, "spark_session", refuse)
    monkeypatch.delenv("PURGATORY_STORE", raising=False)


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ([], "NAME"),
        (["outcomes"], "--journal"),
        (["report", "--jurnal", "x"], "unrecognized arguments: --jurnal x"),
        (["outcomes", "--journal", "x", "--grace", "-5"], "number of 0 or more"),
        (["outcomes", "--journal", "x", "--grace", "inf"], "'inf': give a number of 0 or more"),
        (["advise", "--targets", "expired=nan"], "the target of expired is nan"),
        (["waits", "--memory", "12"], "--memory: '12': give 512m or more, such as 1g or 1536m"),
        (["waits", "--memory", "511m"], "'511m': give 512m or more"),
        (["waits", "--memory", "1gb"], "'1gb': give 512m or more"),
        (["waits", "--engine", "dask"], "invalid choice: 'dask' (choose from "),
        (["waits", "--master", "local[0]"], "--master: 'local[0]': give local[2], spark://HOST"),
        (["replay", "--traffic", "0"], "--traffic: '0': give a number above 0"),
        (["replay", "--timeout", "2e6"], "above 0 and up to 1,000,000"),
        (["replay", "--timeout", "half"], "--timeout: 'half': give a number"),
        (["replay", "--tick-ms", "0"], "--tick-ms: '0': give a whole number of 1 or more"),
        (["replay", "--wheel-size", "1"], "--wheel-size: '1': give a whole number of 2 or more"),
        (["replay", "--shards", "0"], "--shards: '0': give a whole number of 1 or more"),
        (["replay", "--slice", "1.5"], "--slice: '1.5': give a whole number of 1 or more"),
        (["replay", "--load", "kafka-low", "--operations", "0"], "--operations: '0': give"),
        (["replay", "--load", "kafka-low", "--rate", "0"], "--rate: '0': give a number above 0"),
        (["replay", "--load", "kafka-low", "--seed", "-1"], "--seed: '-1': give a whole number"),
        (
            ["replay", "--load", "kafka-low", "--median-ms", "70"],
            "median_ms is 70.0 and quartile_ms 60.0: give numbers above 0, the median no greater",
        ),
        (
            ["replay", "--operations", "5"],
            "--operations needs a synthetic load: give --load kafka-low or kafka-high too, or "
            "leave it out",
        ),
        (
            ["replay", "--load", "kafka-low", "--growth", "busier"],
            "--growth needs recorded operations: give --load recorded, or leave it out",
        ),
        (["outcomes", "--journal", ""], "--journal: it is empty: give a folder"),
        (["schedule", "--from", "x.csv"], "give --store, or set PURGATORY_STORE"),
        (["schedule", "--from", "x.csv", "--store", "mysql://x"], "'mysql' is no job store"),
        (["schedule", "--from", "x.xls", "--store", "sqlite:///x"], "give --format csv"),
        (["schedule", "--from", "x.csv", "--tasks", "0"], "--tasks: '0': give"),
        (["schedule", "--from", "x.csv", "--store-shards", "0"], "--store-shards: '0': give"),
        (["schedule", "--from", "x.csv", "--max-waiting", "0"], "--max-waiting: '0': give"),
    ],
)
def test_wrong_arguments_are_refused_at_once(
    arguments: list[str], complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """With the status 2, the command's usage, and a sentence that says what to give."""
    with pytest.raises(SystemExit, match="2"):
        main([*arguments, *(["--out", "x"] if arguments else [])])
    said = capsys.readouterr().err
    assert said.startswith(" ".join(["usage: python -m purgatory.pipeline", *arguments[:1]]))
    assert complaint in said.splitlines()[-1]


@pytest.mark.parametrize("text", ["512m", "1g", "1G", "524288k", "536870912"])
def test_a_heap_that_java_can_read_is_taken(text: str) -> None:
    """As it was given."""
    assert heap(text) == text


def test_a_heap_that_the_machine_has_not_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Java would take it, and be killed when it comes to use it."""
    monkeypatch.setattr(cli_command, "machine_memory", lambda: 24 * 2**30)
    assert heap("24g") == "24g"
    with pytest.raises(SystemExit, match="2"):
        main(["waits", "--out", "x", "--memory", "2T"])
    said = "--memory: '2T': this machine has 24.0 GiB of memory: give less, such as 12288m"
    assert said in capsys.readouterr().err
    monkeypatch.setattr(cli_command, "machine_memory", lambda: None)
    assert heap("2T") == "2T"


@pytest.mark.parametrize(
    ("name", "said", "found"),
    [
        ("memory.max", "1073741824\n", 2**30),
        ("memory/memory.limit_in_bytes", "1073741824\n", 2**30),
        ("memory.max", "max\n", 2**33),
        ("memory/memory.limit_in_bytes", "9223372036854771712\n", 2**33),
        ("unheard-of", "5\n", 2**33),
    ],
)
def test_a_container_may_have_less_than_the_machine(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str, said: str, found: int
) -> None:
    """The lesser of both counts, in the words of either version of control groups."""
    pages = {"SC_PHYS_PAGES": 2**21, "SC_PAGE_SIZE": 2**12}
    monkeypatch.setattr("os.sysconf", pages.__getitem__)
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_text(said)
    assert machine_memory(tmp_path) == found


@pytest.mark.parametrize(
    "text", ["local", "local[*]", "local[2,4]", "yarn", "spark://a:7077,b:7077", "k8s://https://a"]
)
def test_a_master_that_spark_knows_is_taken(text: str) -> None:
    """As it was given."""
    assert master(text) == text


def test_an_interrupt_is_said_in_a_word(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """And the status is that of the signal."""

    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(command_line, "spark_session", interrupt)
    assert main(["waits", "--engine", "spark", "--out", "x"]) == 130
    assert capsys.readouterr().err.splitlines()[-1] == "waits: interrupted"


@pytest.mark.parametrize("name", ["waits", "advise", "report"])
def test_without_results_and_journal_the_journal_is_asked_for(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is what a first call lacks, rather than another command."""
    assert main([name, "--engine", "duckdb", "--out", str(tmp_path / "new")]) == 1
    last = capsys.readouterr().err.splitlines()[-1]
    assert last.startswith(f"{name}: No ")
    assert last.endswith(f" Or give --journal DIR, with which {name} runs the jobs before it.")


@pytest.mark.parametrize(
    ("out", "reason"), [("file/new", "Not a directory"), ("x" * 300, "File name too long")]
)
def test_an_out_that_cannot_be_created_is_refused_before_the_work(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], out: str, reason: str
) -> None:
    """By its name and with the reason; nothing was read, and Spark is not started."""
    (tmp_path / "file").touch()
    path = str(tmp_path / out)
    assert main(["outcomes", "--journal", "nowhere", "--out", path, "--engine", "spark"]) == 1
    said = f"outcomes: --out {path} cannot be written: {reason}: give another folder\n"
    assert capsys.readouterr().err == said


@pytest.mark.parametrize("address", ["s3a://AKID:SECRET@bucket/x.csv", "redis://:SECRET@h"])
def test_addresses_are_shown_without_credentials(address: str) -> None:
    """On stderr, which is kept in logs; paths are shown as they are."""
    assert "SECRET" not in shown(address) and "***@" in shown(address)
    assert shown("/data/a=b@c") == "/data/a=b@c"


def test_an_empty_out_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    """Such as an unset variable of a shell."""
    with pytest.raises(SystemExit) as ended:
        main(["outcomes", "--journal", "x", "--out", ""])
    assert ended.value.code == 2
    assert "--out: it is empty: give a folder" in capsys.readouterr().err


def test_an_out_that_can_be_created_is_not_until_it_is_needed(tmp_path: Path) -> None:
    """A run that fails leaves no empty folder."""
    out = tmp_path / "deep" / "er"
    assert main(["outcomes", "--journal", f"{tmp_path}/nowhere", "--out", str(out)]) == 1
    assert list(tmp_path.iterdir()) == []


def test_the_start_of_spark_is_said_before_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It takes seconds, in which nothing else would be printed."""

    def fail(*_: object, **__: object) -> None:
        raise PipelineError("no Spark")

    monkeypatch.setattr(command_line, "spark_session", fail)
    monkeypatch.delenv("SPARK_REMOTE", raising=False)
    monkeypatch.delenv("PYSPARK_GATEWAY_PORT", raising=False)
    replay = ["replay", "--load", "kafka-low", "--out", str(tmp_path)]
    for given, said in [
        ([], "starting Spark: local[2]"),
        (["--master", "local[1]"], "starting Spark: local[1]"),
        (["--master", "sc://there"], "connecting to Spark: sc://there"),
    ]:
        assert main([*replay, *given]) == 1
        first, last = capsys.readouterr().err.splitlines()
        assert first.endswith(f" s  {said}") and last == "replay: no Spark"
    monkeypatch.setenv("PYSPARK_GATEWAY_PORT", "1")
    assert main(replay) == 1
    assert capsys.readouterr().err.splitlines()[0].endswith(" s  starting Spark")


def test_help_says_what_needs_no_spark(capsys: pytest.CaptureFixture[str]) -> None:
    """A laptop without Java can run four of the commands."""
    with pytest.raises(SystemExit, match="0"):
        main(["--help"])
    said = " ".join(capsys.readouterr().out.split())
    assert "outcomes, waits, advise and report run on DuckDB" in said
    assert "--engine" in said and "Spark" in said


def test_commands_have_no_options_that_do_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    """Who reads no journal has nothing to skip in it, and only outcomes are ever lost."""
    reading = {"--journal", "--on-bad-file"}
    having: dict[str, set[str]] = {}
    for command in COMMANDS:
        with pytest.raises(SystemExit, match="0"):
            main([command.name, "--help"])
        having[command.name] = {*reading, "--grace"} & set(capsys.readouterr().out.split())
    assert having == {
        **{name: {*reading, "--grace"} for name in ("outcomes", "waits", "advise", "report")},
        "replay": set(),
        "schedule": set(),
    }


def test_results_do_not_go_into_the_journal_by_a_link(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whichever of the two paths has it."""
    (tmp_path / "journal").mkdir()
    (tmp_path / "link").symlink_to("journal")
    for journal, out in (("journal", "link/out"), ("link", "journal/out")):
        places = ["--journal", str(tmp_path / journal), "--out", str(tmp_path / out)]
        assert main(["outcomes", *places, "--engine", "duckdb"]) == 1
        assert f"is within --journal {tmp_path / journal}" in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments",
    [
        pytest.param(["--help"], marks=NIGHTLY),
        ["--out", "new", "--engine", "duckdb"],
        pytest.param(["--no-such-option"], marks=NIGHTLY),
    ],
)
def test_the_command_line_of_the_service_has_the_report(
    tmp_path: Path, arguments: list[str]
) -> None:
    """With the same options, sentences and statuses."""
    same = [
        subprocess.run(
            [sys.executable, "-m", module, "report", *arguments],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            check=False,
        )
        for module in ("purgatory", "purgatory.pipeline")
    ]
    assert same[0].returncode == same[1].returncode
    assert (same[0].stdout, same[0].stderr) == (same[1].stdout, same[1].stderr)
