"""The journal of the service: switched on by a variable, and complete after SIGTERM or a crash."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import duckdb
import pytest

from purgatory.journal import Journal, ParquetFiles
from tests.acceptance.client import Connection, until_parked
from tests.acceptance.process_server import ROOT, serve_service
from tests.journal_batches import complete_files, hidden_files, rows_in


async def test_the_service_writes_what_became_of_each_wait(tmp_path: Path) -> None:
    """Expired, fired, and drained when it is told to stop; keys cut as the settings say."""
    folder = str(tmp_path / "new" / "journal")
    with serve_service(PURGATORY_JOURNAL_DIR=folder, PURGATORY_JOURNAL_KEYS="prefix") as server:
        async with (
            await Connection.open(server.address) as one,
            await Connection.open(server.address) as other,
        ):
            expired = await one.get("/purgatory/watch/order:1?wait=0.05")
            waiting = asyncio.create_task(one.get("/purgatory/watch/order:2?wait=30"))
            await until_parked(server.address, 1)
            await other.request("POST", "/purgatory/keys/order:2")
            fired = await waiting
            drained = asyncio.create_task(one.get("/purgatory/watch/order:3?wait=30"))
            await until_parked(server.address, 1)
            server.terminate()
            replies = [expired, fired, await drained]
        await asyncio.to_thread(server.wait)
    assert [reply.json()["reason"] for reply in replies] == ["expired", "fired", "drained"]
    rows = rows_in(tmp_path)
    assert [row["event"] for row in rows] == [
        *("watched", "expired", "watched", "fired", "watched", "drained")
    ]
    assert {(row["kind"], *row["keys"]) for row in rows} == {("watch", "order")}
    assert len(complete_files(tmp_path)) == 1


def test_a_journal_that_cannot_be_written_stops_the_service(tmp_path: Path) -> None:
    """With a sentence that names the variable, and no traceback."""
    (tmp_path / "file").write_text("in the way")
    result = subprocess.run(
        [sys.executable, "-m", "app"],
        cwd=ROOT,
        env={**os.environ, "PORT": "0", "PURGATORY_JOURNAL_DIR": str(tmp_path / "file")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 2
    # What is open without tokens is said before.
    *others, said = result.stderr.splitlines()
    assert said.startswith("PURGATORY_JOURNAL_DIR: ")
    assert all("INFO" in line for line in others)


@pytest.mark.parametrize(
    "variables",
    [{"PURGATORY_JOURNAL_KEYS": "hash"}, {"PURGATORY_JOURNAL_SECRET": "0123456789abcdef"}],
    ids=["no secret", "no hash"],
)
def test_a_secret_and_hashing_go_together(
    start_refused: Callable[[dict[str, str]], str], variables: dict[str, str]
) -> None:
    """Keys in plain where somebody meant to hash them would be the worst that happens."""
    said = start_refused(variables)
    assert "PURGATORY_JOURNAL_KEYS=hash and PURGATORY_JOURNAL_SECRET belong together" in said
    assert "0123456789abcdef" not in said


_WORKER = """
import asyncio, sys
from purgatory import Purgatory
from purgatory.journal import Journal, ParquetFiles

async def main():
    files = ParquetFiles(sys.argv[1], max_rows=500, group_rows=50)
    async with Journal(files, worker="w") as journal, Purgatory(listeners=[journal]) as purgatory:
        while True:
            parked = [
                asyncio.create_task(purgatory.park(f"k{n % 7}", timeout=60)) for n in range(100)
            ]
            await asyncio.sleep(0)
            for n in range(7):
                await purgatory.fire(f"k{n}")
            await asyncio.gather(*parked)
            await asyncio.sleep(0.01)
            sink = journal.statistics().sinks[0]
            print(sink.files, sink.pending, flush=True)

asyncio.run(main())
"""


def test_a_crash_loses_the_file_that_is_not_complete_and_no_other(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """With kill -9: every file that is there is whole, and only the last rows are in none.

    The next start removes what is left of the file that was not complete.
    """
    command = [sys.executable, "-c", _WORKER, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as worker:
        assert worker.stdout is not None
        try:
            for line in worker.stdout:
                files, pending = line.split()
                if int(files) >= 3 and int(pending) and hidden_files(tmp_path):
                    break
        finally:
            worker.kill()
        assert worker.wait() == -signal.SIGKILL
    rows = rows_in(tmp_path)
    assert len(complete_files(tmp_path)) >= 3
    assert sorted(row["seq"] for row in rows) == list(range(1, len(rows) + 1))
    [(count, operations)] = (
        duckdb.connect()
        .execute(
            "select count(*), count(distinct operation_id) "
            f"from read_parquet('{tmp_path}/**/*.parquet', hive_partitioning = true)"
        )
        .fetchall()
    )
    assert (count, operations) == (len(rows), len({row["operation_id"] for row in rows}))
    with caplog.at_level(logging.WARNING), Journal(ParquetFiles(tmp_path)):
        assert hidden_files(tmp_path) == []
    assert "its writer died before the file was complete" in caplog.text
    assert len(rows_in(tmp_path)) == len(rows)


_FORKED = """
import os, sys
from purgatory import DelayedOperation
from purgatory.operations import DelayedOperationPurgatory
from purgatory.timer import SystemTimer
from purgatory.journal import Journal, ParquetFiles

class Waiting(DelayedOperation):
    def try_complete(self):
        return False

journal = Journal(ParquetFiles(sys.argv[1], group_rows=1))
core = DelayedOperationPurgatory("forked", SystemTimer(), listeners=[journal])

def work():
    with journal:
        for number in range(10):
            core.try_complete_else_watch(Waiting(60_000), [f"k{number}"])
        core.shutdown()
    os._exit(0)

workers = [os.fork() or work() for _ in range(3)]
assert [os.waitpid(worker, 0)[1] for worker in workers] == [0, 0, 0]
"""


def test_workers_that_were_forked_share_a_directory_and_nothing_else(tmp_path: Path) -> None:
    """As with gunicorn's --preload: names and identifiers are those of the process that opens."""
    subprocess.run([sys.executable, "-W", "error", "-c", _FORKED, str(tmp_path)], check=True)
    rows = rows_in(tmp_path)
    assert len({row["operation_id"] for row in rows}) == 30
    assert len({row["worker"] for row in rows}) == 3
    assert (len(rows), len(complete_files(tmp_path)), hidden_files(tmp_path)) == (60, 3, [])
