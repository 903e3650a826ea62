"""The places of workers in a directory."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

from purgatory.metrics import catalog
from purgatory.metrics.families import WorkerFiles
from purgatory.metrics.measure import Snapshot

ROOT = Path(__file__).parents[3]
WORKER = """
import sys
from pathlib import Path
from purgatory.metrics import catalog
from purgatory.metrics.measure import Snapshot
from purgatory.metrics.families import WorkerFiles

files = WorkerFiles(Path(sys.argv[1]))
before = files.claim()
snapshot = Snapshot() if before is None else before
snapshot.put(catalog.FIRES, 1 + snapshot.counters.get((catalog.FIRES.name, ()), 0))
files.write(snapshot, 1)
print(files.slot, flush=True)
sys.stdin.read()
"""


def fires(value: int) -> Snapshot:
    snapshot = Snapshot()
    snapshot.put(catalog.FIRES, value)
    return snapshot


def test_workers_take_the_lowest_free_place(tmp_path: Path) -> None:
    """And get what was last written there."""
    first, second, third = (WorkerFiles(tmp_path) for _ in range(3))
    assert first.claim() is None and second.claim() is None
    assert (first.slot, second.slot) == (0, 1)
    first.write(fires(1), 1)
    second.write(fires(2), 1)
    assert first.read_all() == second.read_all() == {0: fires(1), 1: fires(2)}
    first.release()
    assert third.claim() == fires(1)
    assert third.slot == 0


def test_an_older_snapshot_does_not_replace_a_newer_one(tmp_path: Path) -> None:
    """Two threads of a worker may write in any order."""
    files = WorkerFiles(tmp_path)
    files.claim()
    files.write(fires(2), 2)
    files.write(fires(1), 1)
    assert files.read_all() == {0: fires(2)}
    files.release()
    files.write(fires(3), 3)
    assert files.read_all() == {0: fires(2)}


def test_what_others_leave_in_the_directory_does_not_matter(tmp_path: Path) -> None:
    """Half a snapshot of a full disk, other files, folders."""
    (tmp_path / "worker-7.json").write_bytes(b'{"format": 1')
    (tmp_path / "notes.txt").write_text("no snapshot")
    (tmp_path / "folder").mkdir()
    files = WorkerFiles(tmp_path)
    files.claim()
    files.write(fires(1), 1)
    assert files.read_all() == {0: fires(1)}


def test_the_place_of_a_killed_worker_is_free_at_once(tmp_path: Path) -> None:
    """The kernel releases it: three workers, killed and replaced, have three places."""
    running: list[subprocess.Popen[str]] = []
    try:
        for round_number in range(2):
            for _ in range(3):
                process = subprocess.Popen(
                    [sys.executable, "-c", WORKER, str(tmp_path)],
                    cwd=ROOT,
                    env={**os.environ, "PYTHONPATH": str(ROOT)},
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    text=True,
                )
                running.append(process)
            slots = {int(_line(process)) for process in running}
            assert slots == set(range(3))
            found = WorkerFiles(tmp_path).read_all()
            assert {slot: each.counters for slot, each in found.items()} == {
                slot: {(catalog.FIRES.name, ()): round_number + 1} for slot in range(3)
            }
            _end(running)
    finally:
        _end(running)


def _line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline()


def _end(running: list[subprocess.Popen[str]]) -> None:
    for process in running:
        process.send_signal(signal.SIGKILL)
        process.communicate()
    running.clear()
