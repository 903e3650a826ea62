"""The journal of the service: switched on by a variable, complete after SIGTERM."""

import asyncio
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from app.journal import JournalUnavailableError, create_journal
from app.settings import Settings
from tests.acceptance.client import Connection, until_parked
from tests.acceptance.process_server import ROOT, serve_service
from tests.journal_batches import complete_files, rows_in


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


def test_a_secret_that_is_too_short_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By its length; it is not shown."""
    for name, value in {"DIR": str(tmp_path), "KEYS": "hash", "SECRET": "brief"}.items():
        monkeypatch.setenv(f"PURGATORY_JOURNAL_{name}", value)
    with pytest.raises(JournalUnavailableError, match="the secret has 5 bytes") as caught:
        create_journal(Settings())
    assert "brief" not in str(caught.value)


def test_without_pyarrow_the_service_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And only where a journal is asked for."""
    assert create_journal(Settings()) is None
    for name in [name for name in sys.modules if name.startswith("purgatory.journal")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    monkeypatch.setenv("PURGATORY_JOURNAL_DIR", str(tmp_path))
    with pytest.raises(JournalUnavailableError, match=r"fastapi-purgatory\[journal\]"):
        create_journal(Settings())
