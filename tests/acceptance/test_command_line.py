"""The command `purgatory` against a real server and real stores."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI

from purgatory import Limits, Purgatory
from purgatory.__main__ import main
from purgatory.client import Client
from purgatory.fastapi import ALLOW_ANYONE, BearerTokens, install
from purgatory.fastapi.router import create_health_router
from purgatory.jobs import MemoryJobStore
from purgatory.jobs.clients import SyncJobClient
from purgatory.jobs.sql import SqlJobStore
from tests.acceptance.thread_server import KINDS, ThreadServer, serve
from tests.patience import PATIENCE_S

Run = Callable[..., tuple[int, list[Any]]]
Tell = Callable[..., tuple[int, str]]


@pytest.fixture
def server() -> Iterator[ThreadServer]:
    """A server with jobs, and a short history."""
    app = FastAPI()
    purgatory = Purgatory(jobs=MemoryJobStore(), limits=Limits(max_signals_per_key=5))
    purgatory.handled_elsewhere(["note"], http=True)
    install(app, purgatory, authorize=ALLOW_ANYONE)
    app.include_router(create_health_router(purgatory))
    with serve(app, purgatory, KINDS[2]) as running:
        yield running


@pytest.fixture
def run(
    server: ThreadServer, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> Run:
    """Run a command with --json: its exit status, and the lines of its output."""
    monkeypatch.setenv("PURGATORY_URL", server.url)

    def call(*arguments: str) -> tuple[int, list[Any]]:
        capfd.readouterr()
        status = main(["--json", *arguments])
        return status, [json.loads(line) for line in capfd.readouterr().out.splitlines()]

    return call


@pytest.fixture
def tell(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Tell:
    """Run a command for people: its exit status, and all that it says."""
    monkeypatch.setenv("COLUMNS", "200")

    def call(*arguments: str) -> tuple[int, str]:
        capfd.readouterr()
        status = main(list(arguments))
        said = capfd.readouterr()
        assert "Traceback" not in said.err
        return status, said.out + said.err

    return call


def test_waiting_and_firing(server: ThreadServer, run: Run, tell: Tell) -> None:
    """The exit status says how a wait ended."""
    assert run("wait", "a", "--timeout", "0") == (3, [])
    assert run("fire", "a", '{"by": "card"}')[0] == 0
    status, [signal] = run("wait", "a", "b", "--timeout", "0", "--cursor", "0")
    assert (status, signal["key"], signal["value"]) == (0, "a", {"by": "card"})
    for number in range(9):
        assert run("fire", "a", str(number))[0] == 0
    assert run("wait", "a", "--timeout", "0", "--cursor", signal["cursor"]) == (4, [])
    status, said = tell("--url", server.url, "follow", "a", "--cursor", signal["cursor"])
    assert status == 4 and said.count("read the state again") == 1
    for cursor in re.findall("from '([^']+)'", said):
        assert said.count(cursor) == 1
    assert said.endswith(" for what is still kept. The option is --cursor.\n")
    assert tell("wait", "c", "--timeout", "0") == (3, "expired: no key fired within 0 s\n")
    fired = [run("fire", "b", "--idempotency-key", "once") for _ in range(2)]
    assert fired[0] == fired[1]


def test_what_waits(server: ThreadServer, run: Run, tell: Tell) -> None:
    """Keys with their waiters, and the waits themselves."""
    with Client(server.url) as client:
        waiting = threading.Thread(target=client.wait, args=("a",), kwargs={"timeout": PATIENCE_S})
        waiting.start()
        while not server.purgatory.parked:
            waiting.join(0.01)
        assert run("keys", "--prefix", "a") == (0, [{"key": "a", "waiting": 1}])
        assert run("keys", "a")[1][0]["waiting"]["here"] == 1
        [wait] = run("waits", "--key", "a")[1]
        assert (wait["key"], wait["kind"]) == ("a", "watch")
        status, said = tell("waits")
        assert status == 0 and "127.0.0.1" in said
        assert run("fire", "a")[1][0]["completed"] == 1
        waiting.join()
    assert run("waits") == (0, [])


def test_following(server: ThreadServer) -> None:
    """A line for each signal, at once, until it is interrupted."""
    command = [sys.executable, "-m", "purgatory", "--url", server.url, "--json"]
    with (
        Client(server.url) as client,
        subprocess.Popen(
            [*command, "follow", "a", "--cursor", "0"], stdout=subprocess.PIPE, text=True
        ) as process,
        # Or a failure would wait for it.
        ExitStack() as stack,
    ):
        stack.callback(process.kill)
        assert process.stdout is not None
        for number in range(3):
            client.fire("a", number)
            assert json.loads(process.stdout.readline())["value"] == number
        process.send_signal(2)
        assert process.wait(PATIENCE_S) == 130


def test_a_reader_that_has_enough(server: ThreadServer) -> None:
    """As `head`: nothing is said about the broken pipe."""
    command = [sys.executable, "-m", "purgatory", "--url", server.url, "--json"]
    with (
        Client(server.url) as client,
        subprocess.Popen(
            [*command, "follow", "a", "--cursor", "0"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        ) as process,
        # Or a failure would wait for it.
        ExitStack() as stack,
    ):
        stack.callback(process.kill)
        assert process.stdout is not None and process.stderr is not None
        client.fire("a", "\x7f\x9b2J")
        line = process.stdout.readline()
        assert line.rstrip("\n").isprintable() and json.loads(line)["value"] == "\x7f\x9b2J"
        process.stdout.close()
        client.fire("a")
        assert process.wait(PATIENCE_S) == 1
        assert process.stderr.read() == ""


def test_jobs(run: Run, tell: Tell) -> None:
    """From `defer` to the end of a job, in one shell."""
    status, [job] = run(
        "defer", "note", '{"n": 1}', "--delay", "900", "--key", "k", "--on-fire", "run"
    )
    assert (status, job["state"], job["keys"]) == (0, "waiting", ["k"])
    assert run("jobs", "list", "--state", "waiting")[1][0]["id"] == job["id"]
    other = run("defer", "note", "--delay", "9", "--concurrency-key", "c")[1][0]
    assert (other["concurrency_key"], other["blocked_by"]) == ("c", None)
    assert run("jobs", "cancel", other["id"])[0] == 0
    assert run("jobs", "show", job["id"])[1][0]["payload"] == {"n": 1}
    assert run("jobs", "show", job["id"], "--wait", "0")[0] == 3
    moved = run("jobs", "reschedule", job["id"], "--delay", "9000")[1][0]
    assert moved["deadline"] > job["deadline"]
    # Beyond ten years.
    assert run("jobs", "reschedule", job["id"], "--at", "2099-01-31T09:00:00Z")[0] == 1
    assert run("jobs", "cancel", job["id"])[1][0]["state"] == "cancelled"
    assert run("jobs", "show", job["id"], "--wait", "9")[1][0]["state"] == "cancelled"
    assert run("jobs", "run", job["id"])[0] == 1
    assert tell("jobs", "show", "nobody")[0] == 1
    assert tell("jobs", "reschedule", job["id"])[0] == 2
    assert tell("jobs", "reschedule", job["id"], "--at", "2099-01-31")[0] == 2
    status, said = tell("jobs", "retry", "zzz")
    assert status == 1 and "'zzz'" in said
    assert tell("jobs", "retry")[0] == 2
    assert tell("jobs", "list", "--state", "nonsense")[0] == 2
    assert tell("defer", "note", "--delay", "9", "--on-fire", "nonsense")[0] == 2
    assert tell("jobs", "pause")[0] == 2
    assert tell("jobs", "pause", "note", "--handler", "note")[0] == 2


def test_each_option_of_a_job(run: Run, tell: Tell) -> None:
    """As in the body of the endpoint; what the server refuses has its reason."""
    status, [fired] = run("fire", "j", "1")
    deferred = ("defer", "note", "--delay", "900")
    both = ("--key", "j", "--key", "k")
    status, [job] = run(
        *(*deferred, *both, "--until", "2", "--since", "0", "--max-attempts", "3"),
        *("--misfire", "skip", "--dedupe-key", "d", "--on-conflict", "error"),
    )
    assert (status, job["until"], job["max_attempts"]) == (0, "all", 3)
    assert (job["misfire"], job["state"]) == ("skip", "waiting")
    assert run(*deferred, "--dedupe-key", "d")[0] == 1
    kept = run(*deferred, "--dedupe-key", "d", "--on-conflict", "keep")[1][0]
    assert kept["id"] == job["id"]
    # What fired since the cursor counts, and decides the job.
    late = (*deferred, *both, "--until", "any", "--on-fire", "cancel")
    assert run(*late, "--since", "0")[1][0]["state"] == "cancelled"
    assert run(*late, "--since", fired["cursor"])[1][0]["state"] == "waiting"
    assert tell(*deferred, *both, "--until", "some")[0] == 2
    status, said = tell(*deferred, *both, "--until", "3")
    assert status == 1 and "until" in said


def test_pausing_and_retrying(run: Run) -> None:
    """A handler by its name, or all of them; failed jobs that match, in batches."""
    assert run("jobs", "pause", "note") == (
        0,
        [{"handlers": ["note"], "all": False, "jobs": 0, "unknown": []}],
    )
    assert run("jobs", "pause", "--all")[1][0]["all"] is True
    assert run("jobs", "paused")[1][0]["handlers"] == ["note"]
    assert run("jobs", "resume", "--all")[1][0]["all"] is False
    assert run("jobs", "resume", "--handler", "note")[1][0]["handlers"] == []
    assert run("jobs", "retry", "--all", "--handler", "note") == (0, [{"retried": 0}])


def test_resuming_all_names_what_was_paused_by_name(server: ThreadServer, tell: Tell) -> None:
    """It stays paused, and with one handler nothing is said of others."""
    known = ["--url", server.url, "jobs"]
    for arguments in (["pause", "note"], ["pause", "--all"]):
        assert tell(*known, *arguments)[0] == 0
    assert "still paused, by name: note; resume each with" in tell(*known, "resume", "--all")[1]
    assert "still" not in tell(*known, "resume", "note")[1]
    assert "still" not in tell(*known, "resume", "--all")[1]


def test_tokens(tmp_path: Path, tell: Tell) -> None:
    """What `token` prints is what a server and a client take."""
    status, said = tell("token", "wait:a*")
    token, entry = said.splitlines()
    assert status == 0 and token not in entry
    app, purgatory = FastAPI(), Purgatory()
    install(app, purgatory, authorize=BearerTokens.from_text(entry))
    # With a byte order mark, as editors on Windows write it.
    (tmp_path / "token").write_text(token + "\n", encoding="utf-8-sig")
    with serve(app, purgatory, KINDS[2]) as server:
        known = ["--url", server.url, "--token-file", str(tmp_path / "token")]
        assert tell(*known, "wait", "a", "--timeout", "0")[0] == 3
        status, said = tell(*known, "fire", "a")
        assert status == 1 and "does not allow this: use one with the scope fire:" in said
        status, said = tell("--url", server.url, "fire", "a")
        assert status == 1 and "<token>. Set PURGATORY_TOKEN, or give --token-file." in said
        (tmp_path / "token").write_text("of-another-server")
        status, said = tell(*known, "fire", "a")
        assert status == 1 and "<token>. This server does not know the token in" in said
    assert tell("token", "nonsense")[0] == 2
    assert tell("--token-file", str(tmp_path / "none"), "keys")[0] == 2


def test_what_is_wrong_is_one_sentence(tell: Tell) -> None:
    """With a status of its own, and without a traceback."""
    nobody = ["--url", "http://127.0.0.1:1", "--retry-for", "0"]
    assert tell(*nobody, "fire", "a")[0] == 5
    assert tell("--url", "localhost:8000", "keys")[0] == 2
    assert tell("--url", "localhost:8000", "doctor")[0] == 2
    assert tell("--prefix", "purgatory", "keys")[0] == 2
    status, said = tell(*nobody, "fire", "a", "hello")
    assert status == 2 and """'"hello"'""" in said
    for due in ((), ("--delay", "1", "--at", "2099-01-31T09:00:00Z")):
        status, said = tell(*nobody, "defer", "note", *due)
        assert status == 2 and "--delay" in said and "--at" in said
    assert tell("fire")[0] == 2
    for command in (["doctor"], ["jobs", "list"]):
        status, said = tell(*command, "--url", "http://127.0.0.1:1")
        assert status == 2 and "No such option: --url: give it before the command" in said
        assert "before the command" not in tell(*command, "--nonsense")[1]
    assert tell("--url", "http://127.0.0.1:1", "doctor")[0] == 1


def test_a_wrong_address_has_the_way_out(server: ThreadServer, tell: Tell) -> None:
    """The options for the address, and the address that was tried, without its password."""
    nobody = "http://me:secret@127.0.0.1:1/base"
    status, said = tell("--url", nobody, "--retry-for", "0", "fire", "a")
    assert (status, "secret" in said) == (5, False)
    assert "the server at http://127.0.0.1:1 could not be reached" in said
    assert all(name in said for name in ("--url", "PURGATORY_URL", "--retry-for"))
    for url, prefix in ((f"{server.url}/purgatory", "/purgatory"), (server.url, "/other")):
        status, said = tell("--url", url, "--prefix", prefix, "keys")
        assert status == 1 and "Check --url (or PURGATORY_URL)" in said and "--prefix" in said
    # Of a thing that does not exist, not of the address.
    status, said = tell("--url", server.url, "jobs", "show", "nobody")
    assert status == 1 and "--url" not in said


def test_the_state_of_a_store(tmp_path: Path, run: Run, tell: Tell) -> None:
    """Tables, overdue jobs, and all that `doctor` looks at."""
    store = f"sqlite:///{tmp_path}/jobs.db"
    for command in (("doctor",), ("recover", "--dry-run")):
        status, said = tell(*command, "--store", store)
        assert status == 1 and "there is no SQLite file" in said and "purgatory.jobs.sql" in said
    assert not list(tmp_path.iterdir())
    assert tell("db", "upgrade", "--store", store)[0] == 0
    assert run("recover", "--dry-run", "--store", store) == (0, [])
    assert tell("recover", "--store", store)[0] == 2
    assert tell("recover", "--dry-run", "--store", "mysql://host")[0] == 2
    status, findings = run("doctor", "--store", store)
    assert status == 0
    found = {finding["what"]: finding["result"] for finding in findings}
    assert found["server"] == found["job store"] == "ok"
    [extras] = [finding["detail"] for finding in findings if finding["what"] == "extras"]
    installed = {"cli", "client", "fastapi", "metrics", "sql", "tracing", "webhook"}
    assert installed <= set(extras.split(", "))


def test_doctor_warns_of_jobs_that_no_worker_starts(
    tmp_path: Path, run: Run, tell: Tell, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the names of their handlers, one of which may be mistyped; not of jobs due just now."""
    store = f"sqlite:///{tmp_path}/jobs.db"
    assert tell("db", "upgrade", "--store", store)[0] == 0
    with SyncJobClient(SqlJobStore(store)) as client:
        client.defer("remindd", delay=0)
        client.defer("rewind", delay=900)

    def job_store() -> tuple[str, str]:
        _, findings = run("doctor", "--store", store)
        [found] = [finding for finding in findings if finding["what"] == "job store"]
        return found["result"], found["detail"]

    assert job_store()[0] == "ok"
    monkeypatch.setattr("purgatory.cli.doctor.MAX_OVERDUE_S", 0)
    result, detail = job_store()
    assert result == "warning" and "such as of 'remindd': no worker runs, or none has" in detail


def test_shared_signals_out_of_reach(run: Run) -> None:
    """A failure, said once: a worker would not exchange signals."""
    status, findings = run("doctor", "--signals", "redis://127.0.0.1:1")
    [found] = [finding for finding in findings if finding["what"] == "signals"]
    assert (status, found["result"]) == (1, "failed")
    assert "127.0.0.1:1" in found["detail"]


def test_statistics(run: Run, tell: Tell) -> None:
    """All of one process."""
    assert run("fire", "a")[0] == 0
    assert run("stats")[1][0]["signals"]["signals"] == 1
    status, said = tell("stats")
    assert status == 0 and "wake ups" in said and "signals, bytes" in said and "{" not in said
