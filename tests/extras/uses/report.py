"""A report on a journal, without Spark; and what says which extra has it."""

import asyncio
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

from purgatory import Purgatory
from purgatory.journal import Journal, ParquetFiles


async def main() -> None:
    with Journal(ParquetFiles("history")) as journal:
        async with Purgatory(listeners=[journal]) as purgatory:
            await purgatory.park("paid", timeout=0.001)


def ran(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "purgatory.pipeline", *arguments, "--out", "results"]
    return subprocess.run(command, capture_output=True, text=True, check=False)


asyncio.run(main())
assert find_spec("pyspark") is None and find_spec("pandas") is None
done = ran("report", "--journal", "history")
assert done.returncode == 0, done.stderr
assert "1 operation" in done.stdout
assert Path("results/report/report.html").stat().st_size > 50_000
for arguments in (["replay"], ["waits", "--engine", "spark"]):
    done = ran(*arguments)
    assert done.returncode == 1, done
    assert "pip install 'fastapi-purgatory[pipeline]'" in done.stderr, done.stderr
