"""`purgatory worker module:object`, as a process."""

from __future__ import annotations

import asyncio
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from purgatory.__main__ import main
from purgatory.jobs import JobState
from purgatory.jobs.clients import SyncJobClient
from purgatory.jobs.sql import SqlJobStore, migrate
from tests.cases import cases
from tests.nightly import by_night
from tests.patience import PATIENCE_S

SHOP = """
import asyncio
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

from fastapi import FastAPI

from purgatory import Purgatory
from purgatory.fastapi import install
from purgatory.jobs import JobContext, MemoryJobStore, WorkerSettings
from purgatory.jobs.sql import SqlJobStore

purgatory = Purgatory(
    jobs=SqlJobStore("sqlite:///jobs.db"), job_settings=WorkerSettings(runs_handlers=False)
)
opened = []


@asynccontextmanager
async def lifespan(app):
    opened.append(True)
    yield
    Path("closed").touch()


app = FastAPI(lifespan=lifespan)
install(app, purgatory)


@purgatory.handler("note")
async def note(job: JobContext, text: str) -> None:
    Path("began").touch()
    await asyncio.sleep(0.5 if text == "slow" else 0)
    Path("noted").write_text(f"{text} {opened}")


def create() -> Purgatory:
    return purgatory


async def create_async() -> Purgatory:
    return purgatory


partly = partial(create)
idle = Purgatory(jobs=MemoryJobStore())
bare = Purgatory()
number = 1
"""

STUCK = """
import asyncio
import threading
from pathlib import Path

from purgatory import Purgatory
from purgatory.jobs import JobContext, WorkerSettings
from purgatory.jobs.sql import SqlJobStore

purgatory = Purgatory(
    jobs=SqlJobStore("sqlite:///jobs.db"), job_settings=WorkerSettings(grace_ms=100)
)


def hold() -> None:
    Path("began").touch()
    threading.Event().wait()


@purgatory.handler("hold-thread")
async def hold_thread(job: JobContext) -> None:
    await asyncio.to_thread(hold)


@purgatory.handler("hold-loop")
async def hold_loop(job: JobContext) -> None:
    hold()
"""

FAULTY = """
import os
import signal
from contextlib import asynccontextmanager

from fastapi import FastAPI

from purgatory.fastapi import install
from shop import purgatory


@asynccontextmanager
async def closing_fails(app):
    os.kill(os.getpid(), signal.SIGTERM)
    yield
    raise OSError("the disk is full")


@asynccontextmanager
async def opening_fails(app):
    open("absent")
    yield


closing = FastAPI(lifespan=closing_fails)
opening = FastAPI(lifespan=opening_fails)
for app in (closing, opening):
    install(app, purgatory)
"""

UNMEASURED = """
from purgatory.metrics import PurgatoryCollector
from shop import purgatory


async def text(collector):
    raise ValueError("no figures")


PurgatoryCollector.text = text
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with an application, and its tables."""
    (tmp_path / "shop.py").write_text(SHOP)
    (tmp_path / "stuck.py").write_text(STUCK)
    (tmp_path / "unmeasured.py").write_text(UNMEASURED)
    (tmp_path / "faulty.py").write_text(FAULTY)
    (tmp_path / "faulty_module.py").write_text("None.execute")
    asyncio.run(migrate(f"sqlite:///{tmp_path}/jobs.db"))
    return tmp_path


@pytest.fixture
def here(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The same as the current folder of this process, which a worker leaves as it was."""
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "path", sys.path[:])
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    yield folder
    for name in ("shop", "faulty", "faulty_module"):
        sys.modules.pop(name, None)


@contextmanager
def worker(folder: Path, *arguments: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Run a worker; yield it, and the line that it prints once it works."""
    command = [sys.executable, "-m", "purgatory", "worker", *arguments]
    with subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield process, process.stdout.readline()
        finally:
            process.kill()


def until_exists(path: Path) -> None:
    until_s = time.monotonic() + PATIENCE_S
    while not path.exists():
        assert time.monotonic() < until_s, path
        time.sleep(0.01)


def get(url: str, method: str = "GET") -> tuple[int, str]:
    request = urllib.request.Request(url, method=method)
    try:
        with urllib.request.urlopen(request, timeout=PATIENCE_S) as response:
            return response.status, response.read().decode()
    except urllib.error.HTTPError as exc:
        return exc.code, exc.read().decode()


def test_it_runs_what_others_defer_and_drains(folder: Path) -> None:
    """Within the application's lifespan; what runs when it is stopped has its time."""
    with (
        SyncJobClient(SqlJobStore(f"sqlite:///{folder}/jobs.db")) as client,
        worker(folder, "shop:app", "--port", "0") as (process, line),
    ):
        found = re.search(r"runs note; health: (http://127\.0\.0\.1:\d+)/readyz", line)
        assert found is not None, line
        url = found[1]
        assert get(f"{url}/healthz") == (200, "alive\n")
        # Ready once it has looked at what is due.
        give_up = time.monotonic() + PATIENCE_S
        while get(f"{url}/readyz?verbose=1", "HEAD") != (200, ""):
            assert time.monotonic() < give_up
            time.sleep(0.01)
        status, metrics = get(f"{url}/metrics")
        assert status == 200 and "purgatory_jobs" in metrics
        assert get(f"{url}/shop")[0] == 404 and get(f"{url}/readyz", "POST")[0] == 405
        quick = client.defer("note", "quick", delay=0)
        until_exists(folder / "noted")
        assert (folder / "noted").read_text() == "quick [True]"
        (folder / "began").unlink()
        slow = client.defer("note", "slow", delay=0)
        until_exists(folder / "began")
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE_S) == 0
        states = [client.get(job.id).state for job in (quick, slow)]
    assert states == [JobState.DONE] * 2 and (folder / "closed").exists()


@cases("target", by_night(["shop:create", "shop:partly"], ["shop:partly"]))
def test_of_a_purgatory_alone(folder: Path, target: str) -> None:
    """Or of a callable that returns it; SIGINT stops it, too."""
    with worker(folder, target) as (process, line):
        assert line == "Purgatory worker runs note (Ctrl+C stops it)\n"
        process.send_signal(signal.SIGINT)
        assert process.wait(PATIENCE_S) == 0


def test_metrics_that_fail_are_an_error(folder: Path) -> None:
    """The response is 500; the port goes on."""
    with worker(folder, "unmeasured:purgatory", "--port", "0") as (_, line):
        url = line.partition("health: ")[2].partition("/readyz")[0]
        assert get(f"{url}/metrics") == (500, "internal error\n")
        assert get(f"{url}/healthz") == (200, "alive\n")


@contextmanager
def stuck_worker(folder: Path, handler: str) -> Iterator[subprocess.Popen[str]]:
    """Run a worker whose job of `handler` has begun, and never ends."""
    with (
        SyncJobClient(SqlJobStore(f"sqlite:///{folder}/jobs.db")) as client,
        worker(folder, "stuck:purgatory") as (process, _),
    ):
        client.defer(handler, delay=0)
        until_exists(folder / "began")
        yield process


def test_a_thread_does_not_keep_it(folder: Path) -> None:
    """It exits after the grace, though a handler still awaits `asyncio.to_thread`."""
    with stuck_worker(folder, "hold-thread") as process:
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE_S) == 0


def test_a_second_signal_ends_it_at_once(folder: Path) -> None:
    """Even while a handler holds the event loop."""
    with stuck_worker(folder, "hold-loop") as process:
        until_s = time.monotonic() + PATIENCE_S
        # Repeated: two that arrive at one time are one.
        while process.poll() is None:
            assert time.monotonic() < until_s
            process.send_signal(signal.SIGTERM)
            time.sleep(0.01)
        assert process.returncode == -signal.SIGTERM


@cases(
    "target, message",
    [
        ("shop", "give a module and an object in it, as in shop:app"),
        ("shopp:app", "there is no module 'shopp'"),
        ("shop:apple", "has no attribute 'apple'"),
        ("shop:number", "it is no Purgatory"),
        ("shop:create_async", "it is async"),
        (".shop:app", "give a module and an object in it, as in shop:app"),
        ("shop:bare", "has no job store"),
        ("shop:idle", "has no handlers"),
    ],
)
def test_what_cannot_be_run(
    here: Path, capsys: pytest.CaptureFixture[str], target: str, message: str
) -> None:
    """It is said in a sentence; the exit status is 2."""
    assert main(["worker", target]) == 2
    said = capsys.readouterr().err
    assert message in said and said.count("\n") == 1, said


def test_a_port_that_is_none_is_wrong_usage(capsys: pytest.CaptureFixture[str]) -> None:
    """The message has the highest one."""
    assert main(["worker", "shop:app", "--port", "65536"]) == 2
    assert "65535" in capsys.readouterr().err


def test_a_worker_without_its_tables_or_port_cannot_start(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It says so in a sentence."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert main(["worker", "shop:purgatory", "--port", str(port)]) == 1
    assert capsys.readouterr().err.startswith("the worker cannot start: ")
    (here / "jobs.db").unlink()
    assert main(["worker", "shop:purgatory"]) == 1
    assert capsys.readouterr().err.startswith("the worker cannot start: ")


def test_an_error_of_the_application_is_raised(here: Path) -> None:
    """It is neither a wrong target nor a store that cannot be used."""
    with pytest.raises(AttributeError, match="'NoneType' object has no attribute 'execute'"):
        main(["worker", "faulty_module:app"])
    with pytest.raises(FileNotFoundError, match="'absent'"):
        main(["worker", "faulty:opening"])


def test_an_error_at_the_end_of_the_application_has_its_traceback(folder: Path) -> None:
    """The exit status is 1."""
    command = [sys.executable, "-m", "purgatory", "worker", "faulty:closing"]
    found = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    assert found.returncode == 1, found.stderr
    assert "Traceback" in found.stderr and found.stderr.endswith("OSError: the disk is full\n")
