"""The service's jobs: in a file that survives it."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from app.settings import Settings
from purgatory import Purgatory
from purgatory.jobs import JobContext, JobState
from purgatory.jobs.callbacks import verify_signature
from purgatory.jobs.sql import SqlJobStore
from purgatory.timer import SystemClock
from tests.acceptance.callback_receiver import receiving
from tests.acceptance.client import ask
from tests.acceptance.process_server import ROOT, ProcessServer, serve_service
from tests.bad_input.refusals import check_refusal
from tests.nightly import NIGHTLY
from tests.patience import PATIENCE_S

JOBS = "/purgatory/jobs"
SECRET = "a secret of some length"


def service(data_dir: Path, *, allow_private: bool = True) -> AbstractContextManager[ProcessServer]:
    """The service on a file of jobs."""
    return serve_service(
        PURGATORY_JOBS_URL=f"sqlite+aiosqlite:///{data_dir / 'jobs.sqlite3'}",
        PURGATORY_CALLBACK_ALLOW_PRIVATE=str(allow_private),
        PURGATORY_CALLBACK_SECRET=SECRET,
    )


async def test_a_job_survives_kill_9(tmp_path: Path) -> None:
    """What was answered 201 is there after it, and a fire in the next life decides it."""
    with receiving() as receiver:
        body = {
            "callback": {"url": receiver.url},
            "payload": {"order": 42},
            "delay": 900,
            "keys": ["paid"],
        }
        with service(tmp_path) as server:
            added = await ask(server.address, "POST", "/purgatory/jobs", body)
            assert added.status == 201
        # Killed, and started again.
        with service(tmp_path) as server:
            found = await ask(server.address, "GET", added.headers["location"])
            assert found.json() == added.json()
            fired = await ask(server.address, "POST", "/purgatory/keys/paid", {"value": 1})
            assert fired.json()["jobs"] == 1
            received = receiver.next()
            document = json.loads(received.body)
            assert (document["payload"], document["outcome"]) == ({"order": 42}, "fired")
            assert verify_signature(
                SECRET,
                received.headers["purgatory-signature"],
                method=received.method,
                url=receiver.url,
                job_id=document["job"],
                body=received.body,
                now=SystemClock().wall_ms() / 1000,
            )
            ready = await ask(server.address, "GET", "/readyz")
            assert (ready.status, ready.json()["missing"]) == (200, [])


@pytest.mark.parametrize(
    "url",
    [
        "mysql://somewhere",
        "nonsense",
        "sqlite:",
        "sqlite://",
        "sqlite+pysqlite:///jobs.db",
        "postgresql+nothing://u:hunter2@h/x",
        "postgresql://u:hunter2@h:port/x",
        "redis://u:hunter2/x@h",
    ],
)
def test_a_store_that_is_none_stops_the_start(
    start_refused: Callable[[dict[str, str]], str], url: str
) -> None:
    """With a sentence that names the variable, and the URL without what may be a password."""
    said = start_refused({"PURGATORY_JOBS_URL": url})
    assert said.startswith("PURGATORY_JOBS_URL") and said.count("\n") == 1
    scheme, _, rest = url.partition("://")
    assert "hunter2" not in said
    assert f"{scheme}://***@{rest.rpartition('@')[2]}" in said or "@" not in url


async def test_the_default_is_a_file_in_the_data_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The folder is made; the tables are made when it is opened."""
    monkeypatch.delenv("PURGATORY_JOBS_URL")
    monkeypatch.setenv("PURGATORY_DATA_DIR", str(tmp_path / "a" / "b"))
    store = Settings().job_store()
    await store.open()
    assert (await store.counts()).waiting == 0
    await store.close()
    assert (tmp_path / "a" / "b" / "jobs.sqlite3").exists()


async def test_a_callback_to_a_private_address_is_refused(tmp_path: Path) -> None:
    """Unless the service allows it: it would be retried for minutes, and fail."""
    body = {"callback": {"url": "http://localhost:9/"}, "delay": 900}
    with service(tmp_path, allow_private=False) as server:
        reply = await ask(server.address, "POST", JOBS, body)
        problem = check_refusal(reply, 422, "bad-parameter", "CALLBACK_ALLOW_PRIVATE")
        assert problem["param"] == "callback.url"


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        ("thread", "does not end"),
        ("task", "its handler continues"),
        pytest.param("anything", "its handler continues", marks=NIGHTLY),
    ],
)
async def test_a_handler_that_does_not_end_does_not_keep_its_process(
    tmp_path: Path, kind: str, said: str
) -> None:
    """It ends once it is drained, and says which job it was; another runs that, once it may."""
    url = f"sqlite+aiosqlite:///{tmp_path / 'jobs.sqlite3'}"
    command = [sys.executable, "-m", "tests.acceptance.stuck_worker", url, kind]
    result = await asyncio.to_thread(
        subprocess.run,
        command,
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    job_id = result.stdout.strip()
    assert f"job {job_id} " in result.stderr and said in result.stderr
    purgatory = Purgatory(jobs=SqlJobStore(url))

    @purgatory.handler("stuck")
    async def unstuck(job: JobContext) -> None: ...

    async with purgatory:
        job = await purgatory.job(job_id).wait(PATIENCE_S)
    assert (job.state, job.attempt) == (JobState.DONE, 2)
