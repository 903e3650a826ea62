"""The journal as it grows: windows once each, alerts at a real service, nothing after a restart."""

from __future__ import annotations

import json
import math
import re
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest
from pyspark.sql import Row, SparkSession

from purgatory.pipeline import NothingToReadError, PipelineError
from purgatory.pipeline.__main__ import main
from purgatory.pipeline.errors import AlertRefusedError
from purgatory.pipeline.spark.folder import LocalFolder
from purgatory.pipeline.stream.alerts import Alert, AlertService
from purgatory.pipeline.stream.queries import StreamingQueries, streaming_events, wait_for
from purgatory.pipeline.stream.windows import AlertThresholds, exploding, window_keys, window_waits
from tests.acceptance.process_server import ProcessServer
from tests.pipeline.synthetic import append, events

START = datetime(2026, 11, 20, 6, tzinfo=UTC)
THRESHOLDS = AlertThresholds(least_ended=4, least_expired=3)


@pytest.fixture(scope="module")
def service() -> Iterator[str]:
    """The service, as `make run` starts it."""
    with pytest.MonkeyPatch.context() as variables:
        variables.setenv("PORT", "0")
        server = ProcessServer([sys.executable, "-m", "app"])
    try:
        server.wait_started()
        yield f"http://127.0.0.1:{server.address[1]}/purgatory"
    finally:
        server.kill()


def event(number: int, what: str, second: float, key: str, kind: str = "park") -> dict[str, Any]:
    """An event of an operation that waits for ten seconds at the most."""
    watched = START + timedelta(seconds=second)
    at = watched if what == "watched" else watched + timedelta(seconds=10)
    return {
        "operation_id": f"op-{number}",
        "event": what,
        "seq": number,
        "kind": kind,
        "keys": [key],
        "worker": "one",
        "at": at,
        "watched_at": watched,
        "deadline": watched + timedelta(seconds=10),
        "completed_at": None if what == "watched" else at,
        "lateness_us": 700 if what == "expired" else None,
    }


def minute(first: int, number: int, *, expired: int, fired: int, key: str) -> list[dict[str, Any]]:
    """The events of one minute, `number` minutes after the start."""
    rows = []
    for place in range(expired + fired):
        what, on = ("expired", key) if place < expired else ("fired", f"{key}-{place}")
        rows += [event(first + place, said, 60 * number + place, on) for said in ("watched", what)]
    return rows


def follow(
    spark: SparkSession, journal: Path, out: Path, service: AlertService | None = None
) -> None:
    """Take what is new, and end."""
    live = StreamingQueries(spark, str(out), THRESHOLDS, service=service)
    wait_for(live.start(streaming_events(spark, str(journal)), every_s=None), live.check)


def windows(spark: SparkSession, out: Path) -> dict[int, Row]:
    """The rows of kind park by minute; fails where a window is told twice."""
    rows = spark.read.parquet(f"{out}/live/waits").where("kind = 'park'").collect()
    found = {int((row["start"].astimezone(UTC) - START).total_seconds() // 60): row for row in rows}
    assert len(found) == len(rows)
    return found


def signals(service: str, alert: str) -> list[dict[str, Any]]:
    with urlopen(f"{service}/watch/alert:{alert}?cursor=0&wait=0") as response:
        return [signal["value"] for signal in json.load(response)["signals"]]


def test_a_wrong_clock_does_not_silence_the_stream(spark: SparkSession, tmp_path: Path) -> None:
    """Windows after an event of the year 2099 are reported; that event and late ones are alerts."""
    journal, out = tmp_path / "journal", tmp_path / "out"
    far = datetime(2099, 1, 1, tzinfo=UTC)
    wrong = {**event(90, "fired", 0, "a"), "at": far, "completed_at": far, "worker": "ahead"}
    append(spark, journal, *minute(0, 0, expired=1, fired=2, key="a"), wrong)
    append(spark, journal, *minute(200, 30, expired=0, fired=1, key="b"))
    follow(spark, journal, out)
    assert windows(spark, out)[0]["fired"] == 2
    append(spark, journal, *minute(300, 1, expired=0, fired=2, key="late"))
    append(spark, journal, *minute(400, 60, expired=0, fired=1, key="c"))
    follow(spark, journal, out)
    assert sorted(windows(spark, out)) == [0, 30]
    rows = spark.read.parquet(f"{out}/live/alerts/journal/*").collect()
    details = {row["alert"]: json.loads(row["detail"]) for row in rows}
    assert details == {
        "future-events": {"events": 1, "workers": ["ahead"]},
        "late-events": {"events": 4},
    }


def test_windows_are_told_once_and_alerts_are_fired_once(
    spark: SparkSession, service: str, tmp_path: Path
) -> None:
    """Over a restart from the checkpoint, with repeated events, and a batch that is done again."""
    journal, out = tmp_path / "journal", tmp_path / "out"
    sender = AlertService(service, name=str(tmp_path))
    bad = minute(0, 0, expired=6, fired=2, key="order:1")
    append(spark, journal, *bad, *bad[:5])
    append(spark, journal, *minute(100, 1, expired=1, fired=5, key="order:2"))
    # Half an hour later the first windows are closed.
    append(spark, journal, *minute(200, 30, expired=0, fired=1, key="order:3"))
    follow(spark, journal, out, sender)
    first = windows(spark, out)
    assert sorted(first) == [0, 1]
    assert (first[0]["watched"], first[0]["expired"], first[0]["fired"]) == (8, 6, 2)
    assert first[0]["wait_p50_us"] == 10_000_000
    assert first[0]["lateness_max_us"] == 700
    told = signals(service, "exploding-timeouts")
    assert [(one["subject"], one["expired"], one["ended"]) for one in told] == [("park", 6, 8)]
    assert [one["subject"] for one in signals(service, "stuck-key")] == ["order:1"]

    # Nothing new: nothing is told again.
    follow(spark, journal, out, sender)
    assert windows(spark, out) == first

    # As after a crash between the alerts and the end of the batch: the last batch is done again.
    for name in ("waits", "keys"):
        commits = sorted(
            (out / "live" / "_checkpoints" / name / "commits").glob("[0-9]*"),
            key=lambda path: int(path.name),
        )
        last = commits[-1].name
        LocalFolder(str(commits[0].parent)).delete(last, f".{last}.crc")
        alerts = out / "live" / "alerts" / name
        LocalFolder(str(alerts)).delete(*(path.name for path in alerts.iterdir()))
    append(spark, journal, *minute(300, 31, expired=4, fired=0, key="order:4"))
    append(spark, journal, *minute(400, 60, expired=0, fired=1, key="order:5"))
    follow(spark, journal, out, sender)
    again = windows(spark, out)
    assert sorted(again) == [0, 1, 30, 31]
    assert {number: again[number] for number in first} == first
    told = signals(service, "exploding-timeouts")
    assert Counter((one["subject"], one["expired"]) for one in told) == {
        ("park", 6): 1,
        ("park", 4): 1,
    }
    stuck = [one["subject"] for one in signals(service, "stuck-key")]
    assert stuck == ["order:1", "order:4"]


def test_jobs_that_run_at_their_deadline_are_no_alert(spark: SparkSession) -> None:
    """To expire is what a delayed job is for: it is counted, and nobody is woken."""
    rows = [event(number, "expired", number, "orders", "job:remind") for number in range(40)]
    frame = events(spark, *rows)
    thresholds = AlertThresholds()
    waits = window_waits(frame, thresholds)
    assert [(row["kind"], row["expired"]) for row in waits.collect()] == [("job:remind", 40)]
    assert exploding(waits, thresholds).isEmpty()
    assert window_keys(frame, thresholds).isEmpty()


def test_the_command_follows_to_the_end(
    spark: SparkSession, service: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """And says what it reads, from the start, and where it wrote."""
    append(spark, tmp_path / "journal", *minute(0, 0, expired=6, fired=0, key="order:9"))
    arguments = ["stream", "--journal", str(tmp_path / "journal"), "--out", str(tmp_path / "out")]
    assert main([*arguments, "--once", "--least-ended", "4", "--service", service]) == 0
    said, progress = capsys.readouterr()
    assert "Completed windows, and alerts, are in" in said and "s after its end" in said
    journal, out = tmp_path / "journal", tmp_path / "out"
    lines = [line.split(" s  ")[1] for line in progress.splitlines()]
    assert lines[1:3] == [
        f"reading {journal}",
        f"following {journal} up to its present end; results go to {out}/live",
    ]


def test_a_stream_that_cannot_be_read_ends_with_a_sentence(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Both queries are stopped."""
    live = StreamingQueries(spark, str(tmp_path / "out"), THRESHOLDS)
    queries = live.start(streaming_events(spark, str(tmp_path / "nothing")), every_s=None)
    with pytest.raises(PipelineError, match="not a folder on this machine"):
        wait_for(queries)
    assert not any(query.isActive for query in queries)
    assert issubclass(NothingToReadError, PipelineError)


def test_a_batch_that_breaks_off_says_so_in_a_sentence(spark: SparkSession, tmp_path: Path) -> None:
    """Spark's own error is as long as its traces, and Spark trips over these when it is stopped."""
    journal, out = tmp_path / "journal", tmp_path / "out"
    append(spark, journal, *minute(0, 0, expired=1, fired=0, key="order:1"))
    append(spark, journal, *minute(100, 30, expired=0, fired=1, key="order:2"))
    # Where the rows of batches are to be written.
    (out / "live").mkdir(parents=True)
    (out / "live" / "waits").touch()
    live = StreamingQueries(spark, str(out), THRESHOLDS)
    queries = live.start(streaming_events(spark, str(journal)), every_s=None)
    with pytest.raises(PipelineError, match=r"stopped: Spark failed: .+") as caught:
        wait_for(queries)
    assert "\n" not in str(caught.value)
    # The other one fails too if it is stopped within a batch.
    failed = [str(error) for query in queries if (error := query.exception()) is not None]
    assert failed
    for sentence in failed:
        assert "Spark failed: " in sentence
        # Of the failed writing; Spark Connect adds a trace of the query.
        assert not re.search(r"^\s+at org\.apache\.hadoop\.", sentence, re.MULTILINE)


ALERT = Alert("stuck-key", "order:1", START, START + timedelta(minutes=1), '{"expired": 3}')


@pytest.fixture
def moody() -> Iterator[tuple[str, list[int], list[str]]]:
    """A server that answers with the statuses of a list, and notes the Idempotency-Keys."""
    statuses: list[int] = []
    keys: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            keys.append(self.headers["Idempotency-Key"])
            self.send_response(statuses.pop(0))
            self.send_header("Retry-After", "7")
            self.end_headers()

        def log_message(self, *args: object) -> None:
            """OnProgress nothing."""

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}", statuses, keys
        server.shutdown()
        thread.join()


def test_a_service_that_is_away_for_a_moment_is_asked_again(
    moody: tuple[str, list[int], list[str]],
) -> None:
    """With the same Idempotency-Key, after the pause that it asks for."""
    url, statuses, keys = moody
    statuses += [503, 429, 201]
    pauses: list[float] = []
    AlertService(url, sleep=pauses.append).send(ALERT)
    assert (len(keys), len(set(keys))) == (3, 1)
    assert pauses == [7, 7]


def test_a_service_that_refuses_ends_it(moody: tuple[str, list[int], list[str]]) -> None:
    """401 will be 401 the next time too; and one that is not there is waited for, but not long."""
    url, statuses, keys = moody
    statuses.append(401)
    with pytest.raises(AlertRefusedError, match="401"):
        AlertService(url).send(ALERT)
    assert len(keys) == 1
    pauses: list[float] = []
    with pytest.raises(AlertRefusedError, match="correct that and start again"):
        AlertService("http://127.0.0.1:1/purgatory", sleep=pauses.append).send(ALERT)
    assert len(pauses) == 5


def test_another_window_subject_or_sender_is_another_alert() -> None:
    """By the Idempotency-Key."""
    later = Alert("stuck-key", "order:1", ALERT.end, ALERT.end, "{}")
    other = Alert("stuck-key", "order:2", START, ALERT.end, "{}")
    keys = [alert.idempotency_key("live") for alert in (ALERT, later, other)]
    assert len({*keys, ALERT.idempotency_key("another")}) == 4
    assert json.loads(ALERT.body())["value"]["expired"] == 3


@pytest.mark.parametrize("wrong", [{"window_s": 0}, {"expired_share": math.nan}])
def test_a_watch_that_makes_no_sense_is_refused(wrong: dict[str, Any]) -> None:
    """With what to give."""
    with pytest.raises(ValueError, match="give"):
        AlertThresholds(**wrong)
