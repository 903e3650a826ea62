"""What the README and the docs say is what happens."""

import asyncio
import re
import socket
import subprocess
import sys
import textwrap
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import uvicorn
from fastapi import FastAPI

from purgatory import Limits, Purgatory
from purgatory.fastapi import WaitSettings
from purgatory.jobs import JobContext, MemoryJobStore
from purgatory.testing import AutojumpEventLoop
from tests.acceptance.process_server import ProcessServer
from tests.cases import cases
from tests.pages.blocks import patient
from tests.patience import PATIENCE_S

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def code(page: str, language: str) -> list[str]:
    """The blocks of a language, in order."""
    return re.findall(rf"```{language}\n(.*?)```", page, re.DOTALL)


@asynccontextmanager
async def serving(app: FastAPI) -> AsyncIterator[str]:
    """The address of a real uvicorn that serves `app` until the block is left."""
    listener = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(app, log_level="warning"))
    serve = asyncio.create_task(server.serve(sockets=[listener]))
    while not server.started:  # noqa: ASYNC110 - uvicorn says so in no other way
        await asyncio.sleep(0.01)
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        server.should_exit = True
        await serve


def test_the_readme_opens_with_the_two_commands() -> None:
    """Whoever opens it sees first what to type."""
    assert re.match(r"# Purgatory\n\n```console\nmake run .*\nmake test ", README)


async def test_the_example_for_an_existing_application_works_as_it_stands() -> None:
    """One request is parked, another wakes it, and the endpoints that `install` adds are there."""
    source = code(README, "python")[0]
    assert len(source.strip().splitlines()) <= 20
    names: dict[str, Any] = {}
    exec(compile(source, "README.md", "exec"), names)
    async with (
        serving(names["app"]) as address,
        httpx.AsyncClient(base_url=address, timeout=PATIENCE_S) as client,
    ):
        parked = asyncio.create_task(client.get("/orders/42/payment", timeout=30))
        while not names["app"].state.purgatory.parked:  # noqa: ASYNC110 - nothing announces it
            await asyncio.sleep(0)
        assert (await client.post("/orders/42/payment")).json() == 1
        assert (await parked).json() == {"paid_by": "card"}
        # Who asks after it happened is told at once.
        assert (await client.get("/orders/42/payment")).json() == {"paid_by": "card"}
        seen = await client.get("/purgatory/watch/order:42:paid?cursor=0&wait=0")
        assert len(seen.json()["signals"]) == 1


def test_what_starts_the_example_starts_it(tmp_path: Path) -> None:
    """Saved under the name that the README gives it, by the commands that it gives."""
    page = README[README.index("Save it as") :]
    name = re.search(r"`(\w+\.py)`", page)
    assert name is not None
    (tmp_path / name[1]).write_text(code(README, "python")[0])
    start, *requests = code(page, "bash")[0].splitlines()
    command, *arguments = start.partition(" &")[0].replace("8001", "0").split()
    server = ProcessServer([sys.executable, "-m", command, *arguments, "--app-dir", str(tmp_path)])
    try:
        server.wait_started()
        # In any order, and the line ends too: two processes print.
        said = "".join(run_commands(requests, "localhost:8001", server).split())
        assert said.replace("1", "", 1) == '{"paid_by":"card"}'
    finally:
        server.kill()


def test_the_example_for_the_service_works_as_it_stands(tmp_path: Path) -> None:
    """With the command of `make run`, and all of its defaults."""
    server = ProcessServer(
        [sys.executable, "-m", "app"], PORT="0", PURGATORY_DATA_DIR=str(tmp_path)
    )
    try:
        server.wait_started()
        said = run_commands(code(README, "bash")[1].splitlines(), "localhost:8000", server)
        added = run_commands(code(README, "bash")[2].splitlines(), "localhost:8000", server)
    finally:
        server.kill()
    assert '"completed":1' in said
    assert '"reason":"fired"' in said
    assert '"value":{"by":"card"}' in said
    assert '"state":"waiting"' in added


def run_commands(lines: list[str], address: str, server: ProcessServer) -> str:
    """Run a block of the README against a server, and return what it printed."""
    port = str(server.address[1])
    script = patient("\n".join(lines).replace(address, f"localhost:{port}"), port) + "\nwait"
    return subprocess.run(
        ["bash", "-c", script],
        capture_output=True,
        text=True,
        timeout=2 * PATIENCE_S,
        check=True,
    ).stdout


def test_commands_need_no_new_curl() -> None:
    """Those of curl 7.68, which Ubuntu 20.04 has: `--json` came with 7.82."""
    for page in PAGES:
        blocks = code(page.read_text(), "bash") + code(page.read_text(), "console")
        assert [
            block for block in blocks if re.search(r"curl .*--(json|url-query|rate)\b", block)
        ] == []


async def test_the_database_case_of_the_readme_misses_nothing() -> None:
    """What fires while the database is read ends the wait at once."""
    source = code(README, "python")[1]
    function = "async def case():\n" + textwrap.indent(source, "    ") + "    return outcome\n"
    async with Purgatory() as purgatory:

        async def read_order(order: int) -> str:
            await purgatory.fire(f"order:{order}", "paid meanwhile")
            return "open"

        names: dict[str, Any] = {"purgatory": purgatory, "read_order": read_order}
        exec(compile(function, "README.md", "exec"), names)
        outcome = await names["case"]()
        assert (outcome.is_fired, outcome.value) == (True, "paid meanwhile")


@cases("is_paid, state", [(False, "cancelled"), (True, "unpaid")])
def test_the_job_of_the_readme_runs_unless_its_key_fires(is_paid: bool, state: str) -> None:
    """In virtual time: fifteen minutes pass at once."""
    source = code(README, "python")[2]
    function = "async def case():\n" + textwrap.indent(source, "    ")
    orders = {"42": "unpaid"}

    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, AutojumpEventLoop)
        async with Purgatory(clock=loop.clock, jobs=MemoryJobStore()) as purgatory:
            names: dict[str, Any] = {
                "JobContext": JobContext,
                "orders": orders,
                "paid": {},
                "purgatory": purgatory,
            }
            exec(compile(function, "README.md", "exec"), names)
            await names["case"]()
            if is_paid:
                await purgatory.fire("order:42:paid")
            await asyncio.sleep(901)

    with asyncio.Runner(loop_factory=AutojumpEventLoop) as runner:
        runner.run(scenario())
    assert orders == {"42": state}


async def test_the_database_case_of_the_docs_misses_nothing() -> None:
    """The same in an endpoint: a change during the read is in the response."""
    source = code((ROOT / "docs" / "how-to" / "existing-app.md").read_text(), "python")[0]
    names: dict[str, Any] = {}
    exec(compile(source, "app.py", "exec"), names)
    read_state = names["read_state"]

    def read_then_pay(order: int) -> str:
        state: str = read_state(order)
        if state == "unpaid":
            names["database"].execute("update orders set state = 'paid' where id = ?", [order])
            # Without other processes a fire ends in its first step.
            with pytest.raises(StopIteration):
                names["app"].state.purgatory.fire(f"order:{order}").send(None)
        return state

    names["read_state"] = read_then_pay
    async with (
        serving(names["app"]) as address,
        httpx.AsyncClient(base_url=address, timeout=PATIENCE_S) as client,
    ):
        seen = await client.get("/orders/42?seen=unpaid&wait=5")
        assert seen.json() == "paid"


def test_the_example_for_applications_works_as_it_stands(tmp_path: Path) -> None:
    """As often as there are tests, each of which starts the application."""
    source = code((ROOT / "docs" / "how-to" / "test-your-code.md").read_text(), "python")[-1]
    (tmp_path / "test_twice.py").write_text(
        source + source.replace("test_nothing", "test_still_nothing")
    )
    made = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(tmp_path)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=2 * PATIENCE_S,
        check=False,
    )
    assert "2 passed" in made.stdout, made.stdout


def test_the_table_of_limits_is_true() -> None:
    """The defaults that the docs name are those of the code."""
    limits, waits = Limits(), WaitSettings()
    page = (ROOT / "docs" / "reference" / "limits.md").read_text()
    rows = dict(re.findall(r"^\| ([^|]+?) \| ([^|]+?) \| [^|]+ \|$", page, re.MULTILINE))
    assert rows["a wait over HTTP"] == f"{waits.default_wait:g} s, at most {waits.max_wait:g} s"
    assert rows["parked at once"] == f"{limits.max_parked:,}"
    assert (
        rows["keys of all parked requests with several"]
        == f"{limits.max_parked_bytes // 1024**2} MiB"
    )
    assert rows["parked by one client"] == f"{waits.max_parked_per_client:,}"
    assert rows["keys in one wait"] == str(limits.max_keys_per_operation)
    assert rows["a value"] == f"{limits.max_value_bytes // 1024} KiB of JSON"
    assert f"A wait over HTTP is {waits.default_wait:g} s, at most {waits.max_wait:g};" in README
    assert f"{limits.max_parked:,} requests may be parked" in README
    assert rows["signals kept"] == (
        f"{limits.max_signals_per_key:,} a key, {limits.max_signals:,} and "
        f"{limits.max_signal_bytes // 1024**2} MiB in all, {limits.max_signal_age / 60:g} minutes"
    )


@cases("page", PAGES)
def test_links_lead_somewhere(page: Path) -> None:
    """Each link to a file of the repository names one that is there."""
    targets = re.findall(r"\]\(([^)#:]+)\)", page.read_text())
    assert [target for target in targets if not (page.parent / target).exists()] == []


async def test_the_example_for_jobs_works_as_it_stands() -> None:
    """An order that nobody pays is cancelled; one that is paid is not."""
    source = code((ROOT / "docs" / "reference" / "jobs.md").read_text(), "python")[0]
    names: dict[str, Any] = {}
    exec(compile(source, "jobs.md", "exec"), names)
    async with (
        serving(names["app"]) as address,
        httpx.AsyncClient(base_url=address, timeout=PATIENCE_S) as client,
    ):
        paid = (await client.post("/orders/1?minutes=1")).json()
        due = (await client.post("/orders/2?minutes=0")).json()
        await names["purgatory"].fire("order:1:paid")
        assert (await names["purgatory"].job(due).wait(PATIENCE_S)).state == "done"
        assert (await names["purgatory"].job(paid).wait(PATIENCE_S)).state == "cancelled"
    assert names["cancelled"] == ["2"]
