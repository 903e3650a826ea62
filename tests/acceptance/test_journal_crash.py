"""Workers with one journal: one that dies at once, and several on the same directory."""

import logging
import signal
import subprocess
import sys
from pathlib import Path

import duckdb
import pytest

from purgatory.journal import Journal, ParquetFiles
from tests.journal_batches import complete_files, hidden_files, rows_in

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
