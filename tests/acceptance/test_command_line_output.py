"""What the command `purgatory` shows to people: lists, findings of `doctor`, what is to recover."""

from __future__ import annotations

import asyncio
import json
import os
import pty
import re
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing
from datetime import timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from fastapi import FastAPI

from purgatory import Purgatory
from purgatory.__main__ import main
from purgatory.cli.doctor import installed_version
from purgatory.cli.output import counted, local_time, without_pointer
from purgatory.client import Client
from purgatory.environment import KNOWN, unknown_variables
from purgatory.fastapi import ALLOW_ANYONE, install
from purgatory.jobs import JobContext, MemoryJobStore, RetryJobError
from purgatory.jobs.clients import JobClient
from purgatory.jobs.model.limits import Bounds
from purgatory.jobs.model.spec import JobSpec
from purgatory.jobs.model.steps import Claim, Start
from purgatory.jobs.sql import migrate
from tests.acceptance.thread_server import KINDS, ThreadServer, serve
from tests.patience import PATIENCE_S, until
from tests.step_methods import SqlSteps
from tests.valkey_server import ValkeyServer

_CONTROL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


@pytest.fixture
def server() -> Iterator[ThreadServer]:
    """A server with jobs and a dashboard."""
    app = FastAPI()
    purgatory = Purgatory(jobs=MemoryJobStore())
    purgatory.handled_elsewhere(["send-a-reminder-by-mail"], http=True)
    install(app, purgatory, authorize=ALLOW_ANYONE)
    with serve(app, purgatory, KINDS[2]) as running:
        yield running


def _in_terminal(columns: int, *arguments: str) -> list[str]:
    """Return the lines that a command writes to a terminal of so many columns."""
    leader, follower = pty.openpty()
    environment = os.environ | {"COLUMNS": str(columns), "LINES": "24", "TERM": "xterm"}
    command = [sys.executable, "-m", "purgatory", *arguments]
    with subprocess.Popen(command, stdout=follower, stdin=follower, env=environment) as process:
        os.close(follower)
        said = b""
        try:
            while piece := os.read(leader, 65536):
                said += piece
        except OSError:
            # As Linux ends the output of a terminal.
            pass
        assert process.wait(PATIENCE_S) == 0
    os.close(leader)
    return _CONTROL.sub("", said.decode()).splitlines()


def test_a_list_of_jobs_has_one_line_for_each(
    server: ThreadServer, capfd: pytest.CaptureFixture[str]
) -> None:
    """In a terminal of 80 columns whole ids and cut keys; without a terminal, all of it."""
    keys = [f"order:{number:030}" for number in range(3)]
    with Client(server.url) as client:
        for _ in range(3):
            client.defer("send-a-reminder-by-mail", delay=900, keys=keys)
        created = {job.id: job.fields["created"] for job in client.jobs()}
    ids = list(created)
    _, *rows = _in_terminal(80, "--url", server.url, "jobs", "list")
    assert sorted(row.split()[0] for row in rows) == sorted(ids)
    assert all(len(row) <= 80 and "…" in row for row in rows)
    narrow = "".join(_in_terminal(40, "--url", server.url, "jobs", "list"))
    assert all(job_id in narrow for job_id in ids)
    capfd.readouterr()
    assert main(["--url", server.url, "jobs", "list"]) == 0
    _, *rows = capfd.readouterr().out.splitlines()
    shown = [row.split()[0] for row in rows]
    assert sorted(shown) == sorted(ids)
    # The newest first, though their ids have only the hour.
    assert [created[job_id] for job_id in shown] == sorted(created.values(), reverse=True)
    assert all(", ".join(keys) in row for row in rows)


def test_a_list_of_jobs_names_what_blocks_them(capfd: pytest.CaptureFixture[str]) -> None:
    """The bound or the pause of its handler in place of the state, of jobs that are due."""
    app, purgatory, is_over = FastAPI(), Purgatory(jobs=MemoryJobStore()), threading.Event()

    @purgatory.handler("by-handler", http=True, max_running=1)
    @purgatory.handler("by-key", http=True, max_running_per_key=1)
    def hold(job: JobContext) -> None:
        assert is_over.wait(PATIENCE_S)

    purgatory.handler("mail", http=True)(hold)
    install(app, purgatory, authorize=ALLOW_ANYONE)
    with serve(app, purgatory, KINDS[2]) as running, Client(running.url) as client:
        assert main(["--url", running.url, "jobs", "pause", "mail"]) == 0
        client.defer("mail", delay=0)
        for handler in ("by-handler", "by-key") * 2:
            client.defer(handler, delay=0, concurrency_key="customer:7")
        deadline_s = time.monotonic() + PATIENCE_S
        while [job.fields["blocked_by"] for job in client.jobs()].count(None) != 2:
            assert time.monotonic() < deadline_s
            time.sleep(0.01)
        capfd.readouterr()
        assert main(["--url", running.url, "jobs", "list", "--state", "waiting"]) == 0
        _, *rows = capfd.readouterr().out.splitlines()
        assert main(["--url", running.url, "jobs", "list", "--blocked"]) == 0
        assert capfd.readouterr().out.splitlines()[1:] == rows
        options = ["--concurrency-key", "customer:7", "--handler", "by-key"]
        assert main(["--url", running.url, "jobs", "list", *options]) == 0
        by_key = capfd.readouterr().out.splitlines()[1:]
        is_over.set()
    pattern = r" blocked by (handler|key) .* by-\1 | paused .* mail "
    assert all(re.search(pattern, row) for row in rows) and len(rows) == 3
    assert len(by_key) == 2 and all("by-key" in row for row in by_key)


def test_periodic_jobs_are_listed_with_their_next_runs(capfd: pytest.CaptureFixture[str]) -> None:
    """The earliest first, as lines of JSON too, and nothing else."""
    app, purgatory = FastAPI(), Purgatory(jobs=MemoryJobStore())

    @purgatory.periodic("yearly", every=timedelta(days=365))
    @purgatory.periodic("hourly", every=timedelta(hours=1), http=True)
    async def tick(job: JobContext) -> None: ...

    install(app, purgatory, authorize=ALLOW_ANYONE)
    with serve(app, purgatory, KINDS[2]) as running, Client(running.url) as client:
        client.defer("hourly", delay=900)
        until_s = time.monotonic() + PATIENCE_S
        while len(list(client.jobs())) < 3:
            assert time.monotonic() < until_s
            time.sleep(0.01)
        assert main(["--url", running.url, "jobs", "periodic"]) == 0
        head, *rows = capfd.readouterr().out.splitlines()
        assert main(["--url", running.url, "--json", "jobs", "periodic"]) == 0
        found = [json.loads(line) for line in capfd.readouterr().out.splitlines()]
    assert head.split() == ["handler", "due", "state", "id"]
    assert [row.split()[0] for row in rows] == ["hourly", "yearly"]
    assert [each["due"][13:] for each in found] == [":00:00.000Z"] * 2


def test_a_job_between_two_attempts_shows_the_next_one(capfd: pytest.CaptureFixture[str]) -> None:
    """When it is due, not the deadline, which is past, and how many attempts there are."""
    app, purgatory = FastAPI(), Purgatory(jobs=MemoryJobStore())

    @purgatory.handler("fragile", http=True)
    def fail(job: JobContext) -> None:
        raise RetryJobError("not yet", after=3_600)

    install(app, purgatory, authorize=ALLOW_ANYONE)
    with serve(app, purgatory, KINDS[2]) as running, Client(running.url) as client:
        job = client.defer("fragile", delay=0, max_attempts=4)
        deadline_s = time.monotonic() + PATIENCE_S
        while job.get().fields["error"] is None:
            assert time.monotonic() < deadline_s
            time.sleep(0.01)
        due = local_time(job.get().fields["due"])
        assert due > local_time(job.get().fields["deadline"])
        capfd.readouterr()
        assert main(["--url", running.url, "jobs", "list"]) == 0
        header, row = capfd.readouterr().out.splitlines()
        wide = _in_terminal(130, "--url", running.url, "jobs", "list")[1]
        narrow = _in_terminal(80, "--url", running.url, "jobs", "list")[1]
    assert "due" in header and "deadline" not in header
    assert all(due in line and "1 of 4" in line for line in (row, wide))
    assert due[5:16] in narrow


def test_a_job_that_is_done_shows_no_error(capfd: pytest.CaptureFixture[str]) -> None:
    """That of an earlier attempt would look like its end; `show` has it."""
    app, purgatory = FastAPI(), Purgatory(jobs=MemoryJobStore())

    @purgatory.handler("fragile", http=True)
    def fail_once(job: JobContext) -> None:
        if job.attempt == 1:
            raise RetryJobError("not yet", after=0)

    install(app, purgatory, authorize=ALLOW_ANYONE)
    with serve(app, purgatory, KINDS[2]) as running, Client(running.url) as client:
        job = client.defer("fragile", delay=0, max_attempts=2)
        assert job.wait(PATIENCE_S).state == "done"
        said = []
        for command in (["list"], ["show", job.id]):
            capfd.readouterr()
            assert main(["--url", running.url, "jobs", *command]) == 0
            said.append("not yet" in capfd.readouterr().out)
    assert said == [False, True]


def test_the_version(capfd: pytest.CaptureFixture[str]) -> None:
    """Without a command."""
    assert main(["--version"]) == 0
    assert capfd.readouterr().out == f"{installed_version()}\n"


def test_a_closed_standard_output_is_as_if_thrown_away(server: ThreadServer) -> None:
    """`purgatory wait KEY >&-` is for the exit status."""
    command = [sys.executable, "-m", "purgatory", "--url", server.url, "jobs", "list"]
    shell = subprocess.run(["sh", "-c", '"$@" >&-', "sh", *command], stderr=subprocess.PIPE)
    assert (shell.returncode, shell.stderr) == (0, b"")


def test_a_list_that_was_cut_says_so(
    server: ThreadServer, capfd: pytest.CaptureFixture[str]
) -> None:
    """Beside the output, with --json, too."""
    with Client(server.url) as client:
        for _ in range(3):
            client.defer("send-a-reminder-by-mail", delay=900)
    for options in ([], ["--json"]):
        shown = []
        for limit in ("2", "3"):
            capfd.readouterr()
            assert main(["--url", server.url, *options, "jobs", "list", "--limit", limit]) == 0
            said = capfd.readouterr()
            shown.append((len(said.out.splitlines()), "more than 2 jobs" in said.err, said.err))
        assert shown[0][:2] == (2 + (not options), True)
        assert shown[1] == (3 + (not options), False, "")


def test_help_has_the_time_for_which_the_store_knows_a_repeat(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """For a job it is that of docs/reference/http.md, and not that of a fire."""
    monkeypatch.setenv("COLUMNS", "200")
    for command, words in (("defer", "while the job is kept"), ("fire", "within ten minutes")):
        assert main([command, "--help"]) == 0
        assert words in capfd.readouterr().out


def test_statistics_without_a_terminal(server: ThreadServer) -> None:
    """A line for each second."""
    command = [sys.executable, "-m", "purgatory", "--url", server.url, "stats", "--watch"]
    with (
        subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process,
        # Or a failure would wait for it.
        ExitStack() as stack,
    ):
        stack.callback(process.kill)
        assert process.stdout is not None
        for _ in range(2):
            assert "parked 0" in process.stdout.readline()
        process.send_signal(2)
        assert process.wait(PATIENCE_S) == 130


def test_a_place_in_the_request_in_words() -> None:
    """Not as a JSON pointer."""
    assert without_pointer("/keys/order:43: cursor 'x' is bad") == "key order:43: cursor 'x' is bad"
    assert without_pointer("/keys/a~1b: no: never") == "key a/b: no: never"
    assert without_pointer("/delay: 1; allowed: 2") == "delay: 1; allowed: 2"
    assert without_pointer("no such key") == "no such key"
    assert (counted(1, "job"), counted(0, "job")) == ("1 job", "0 jobs")
    assert local_time("2027-01-01T00:00:00.000Z") == local_time(1_798_761_600_000)


def test_a_bad_cursor_names_its_key(
    server: ThreadServer, capfd: pytest.CaptureFixture[str]
) -> None:
    """As people write it."""
    assert main(["--url", server.url, "wait", "order:43", "--cursor", "x", "--timeout", "0"]) == 1
    assert capfd.readouterr().err.startswith("key order:43: cursor 'x'")


def test_doctor_names_what_is_wrong(
    server: ThreadServer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """Warnings of the shared signals are in the table; workers and unknown variables too."""
    monkeypatch.delenv("PURGATORY_JOBS_URL", raising=False)
    monkeypatch.setenv("PURGATORY_MAX_PARKD", "7")
    with ValkeyServer(tmp_path, maxmemory="100mb") as valkey:
        main(["--url", server.url, "doctor", "--signals", valkey.url])
    said = capfd.readouterr()
    rows = [row for row in said.out.splitlines() if row]
    assert not said.err
    assert any(
        row.startswith("warning  settings") and "PURGATORY_MAX_PARKED?" in row for row in rows
    )
    assert any("worker" in row and f":{os.getpid()}" in row for row in rows)
    assert any("server's signals" in row for row in rows)
    assert any(row.startswith("warning  signals") for row in rows)


def test_one_worker_of_several_is_said(
    server: ThreadServer, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Statistics are those of the worker that responds, which matters if others share signals."""
    with Client(server.url) as client:
        found = client.call("GET", "/statistics")
    for shared, note in ((None, ""), ({"lag": 0}, "of the worker that responded")):
        statistics = found | {"shared_signals": shared}
        monkeypatch.setattr(Client, "call", lambda *_, statistics=statistics: statistics)
        main(["--url", server.url, "stats"])
        said = capfd.readouterr().err
        assert note in said and bool(said) is bool(note)


def test_doctor_names_extras_of_which_all_is_installed(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """And says that the API of OpenTelemetry, which other libraries bring, records nothing."""
    absent = {"aiosqlite", "opentelemetry.sdk"}
    monkeypatch.setattr("purgatory.cli.doctor._is_installed", lambda name: name not in absent)
    main(["--json", "--url", "http://127.0.0.1:1", "doctor"])
    findings = map(json.loads, capfd.readouterr().out.splitlines())
    found = {finding["what"]: finding["detail"] for finding in findings}
    assert (
        not {"sql", "postgresql"} & set(found["extras"].split(", ")) and "redis" in found["extras"]
    )
    assert "only the API" in found["tracing"]


def test_the_compiled_core_of_a_checkout_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """`make run` compiles it into a folder that only it uses."""
    monkeypatch.setattr("purgatory.cli.doctor.compiled", False)
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    timer = tmp_path / "compiled" / "purgatory" / "timer"
    for is_compiled, way in ((False, "install a wheel"), (True, f"PYTHONPATH={tmp_path}/compiled")):
        if is_compiled:
            timer.mkdir(parents=True)
            (timer / "wheel.so").touch()
        main(["--json", "--url", "http://127.0.0.1:1", "doctor"])
        findings = map(json.loads, capfd.readouterr().out.splitlines())
        [core] = [finding for finding in findings if finding["what"] == "core"]
        assert way in core["detail"]
        assert core["result"] == ("ok" if is_compiled else "warning")
        assert ("`make run` serves" in core["detail"]) == is_compiled


def test_the_known_variables_are_those_of_the_service() -> None:
    """Besides what the command itself, the installation and the pipeline read."""
    settings = pytest.importorskip("app.settings").Settings.model_fields
    names = {
        str(field.validation_alias or f"PURGATORY_{name.upper()}")
        for name, field in settings.items()
    }
    ours = {name.removeprefix("PURGATORY_") for name in names if name.startswith("PURGATORY_")}
    assert ours | {"PURE_PYTHON", "STORE", "TOKEN", "URL"} == KNOWN
    assert unknown_variables({"PURGATORY_PORT": "tcp://1", "PATH": "", "PURGATORY_URL": ""}) == []


@pytest.mark.parametrize(
    ("ahead_s", "result"), [(0, "ok"), (-3, "ok"), (3, "ok"), (-60, "warning"), (60, "warning")]
)
def test_the_clock_of_the_server(
    ahead_s: int, result: str, capfd: pytest.CaptureFixture[str]
) -> None:
    """A busy server's Date is seconds late: that is no difference of clocks."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(404)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def date_time_string(self, timestamp: float | None = None) -> str:
            return super().date_time_string(time.time() + ahead_s)

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            main(["--json", "--url", f"http://127.0.0.1:{server.server_port}", "doctor"])
        finally:
            server.shutdown()
            thread.join()
    findings = [json.loads(line) for line in capfd.readouterr().out.splitlines()]
    [found] = [finding for finding in findings if finding["what"] == "server's clock"]
    assert found["result"] == result, found


async def _paused_jobs(path: Path) -> None:
    """Add overdue jobs: blocked by a pause, due since the last worker, and of another handler."""
    url = f"sqlite:///{path}"
    await migrate(url)
    purgatory = Purgatory(jobs=SqlSteps(url))

    @purgatory.handler("mail")
    async def mail(job: JobContext) -> None:
        raise AssertionError("it is paused")

    async with purgatory:
        await purgatory.jobs.pause("mail")
        for misfire in ("skip", "skip", "run", "spread"):
            await purgatory.defer("mail", delay=0, misfire=misfire)
        await until(lambda: _blocked(path) == 4)
    async with JobClient(SqlSteps(url)) as client:
        await client.defer("mail", delay=0, misfire="skip")
        await client.defer("note", delay=0)
    store = SqlSteps(url)
    await store.open()
    # A worker that ran one of two, and died.
    await store.add([JobSpec.of("charge", wall_ms=0, delay=0) for _ in range(2)])
    bounds = Bounds("charge", 1)
    [claimed] = await store.run([Claim("w", 0, 10, 1, ("charge", "mail", "note"), (bounds,))])
    [running] = [job for job in claimed.jobs if job.handler == "charge"]
    await store.run([Start(running.claim, 1, bounds=bounds)])
    await store.close()
    with closing(sqlite3.connect(path)) as database, database:
        # As if a minute had passed.
        database.execute(
            "UPDATE purgatory_jobs SET created_ms = created_ms - 60000, "
            "deadline_ms = deadline_ms - 60000, due_ms = due_ms - 60000"
        )


def _blocked(path: Path) -> int:
    with closing(sqlite3.connect(path)) as database:
        count = "SELECT count(*) FROM purgatory_jobs WHERE blocked_by = 'paused'"
        return int(database.execute(count).fetchone()[0])


def test_jobs_of_a_paused_handler(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """They are overdue, and what happens to them happens once it is resumed."""
    path = tmp_path / "jobs.sqlite3"
    url = f"sqlite:///{path}"
    asyncio.run(_paused_jobs(path))
    capfd.readouterr()
    assert main(["--json", "recover", "--dry-run", "--store", url]) == 0
    said = capfd.readouterr()
    none = {"run": 0, "skip": 0, "spread": 0, "blocked": 0, "interrupted": 0}
    assert [json.loads(line) for line in said.out.splitlines()] == [
        none | {"handler": "charge", "paused": False, "blocked": 1, "interrupted": 1},
        none | {"handler": "mail", "paused": True, "run": 1, "skip": 3, "spread": 1},
        none | {"handler": "note", "paused": False, "run": 1},
    ]
    assert "no job is overdue" not in said.err
    assert main(["recover", "--dry-run", "--store", url]) == 0
    said = capfd.readouterr()
    assert [line.split() for line in said.out.splitlines()] == [
        ["handler", "paused", "run", "skip", "spread", "blocked", "interrupted"],
        ["charge", "false", "0", "0", "0", "1", "1"],
        ["mail", "true", "1", "3", "1", "0", "0"],
        ["note", "false", "1", "0", "0", "0", "0"],
    ]
    assert "jobs of paused handlers: what happens once these are resumed" in said.err
