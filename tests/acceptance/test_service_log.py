"""What the service says while it runs."""

from __future__ import annotations

import asyncio
import json
import logging.config
import os
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from app.__main__ import main
from tests.acceptance.client import ask
from tests.acceptance.process_server import ROOT, ProcessServer, serve_service
from tests.nightly import NIGHTLY
from tests.patience import PATIENCE_S

TIME = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z "


async def test_each_line_has_its_time(tmp_path: Path) -> None:
    """Its own lines, those of the server and those of requests; and no value of anything."""
    settings = {"PURGATORY_DATA_DIR": str(tmp_path), "PURGATORY_MAX_PARKD": "hunter2"}
    with serve_service(**settings) as server:
        await ask(server.address, "POST", "/purgatory/keys/k", {"value": "hunter2"})
        server.terminate()
        server.wait()
    # To whoever started it, and not a line of the log.
    lines = [line for line in server.log if not re.match("Purgatory (on http:|has stopped)", line)]
    assert len(lines) == len(server.log) - 2
    assert server.process.returncode == 0
    for line in lines:
        assert re.match(f"{TIME}(INFO|WARNING): ", line), line
    log = "".join(lines)
    assert "PURGATORY_MAX_PARKD is not a setting and is ignored: did you mean PURGATORY_M" in log
    assert re.search(f'{TIME}INFO: +127.0.0.1:[0-9]+ - "POST /purgatory/keys/k HTTP/1.1" 201', log)
    assert "hunter2" not in log


def test_a_closed_standard_output_is_as_if_thrown_away(tmp_path: Path) -> None:
    """As of supervisors that keep the log only, on stderr."""
    with (tmp_path / "log").open("wb") as log:
        service = subprocess.Popen(
            ["sh", "-c", 'exec "$@" >&-', "sh", sys.executable, "-m", "app"],
            cwd=ROOT,
            env={**os.environ, "PORT": "0", "PURGATORY_DATA_DIR": str(tmp_path)},
            stderr=log,
        )
    try:
        deadline = time.monotonic() + PATIENCE_S
        while "startup complete" not in (said := (tmp_path / "log").read_text()):
            assert service.poll() is None and time.monotonic() < deadline, said
            time.sleep(0.05)
        service.terminate()
        assert service.wait(PATIENCE_S) == 0
    finally:
        service.kill()
        service.wait()


# By day test_each_line_has_its_time ends by SIGTERM.
@pytest.mark.parametrize("number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=NIGHTLY)])
async def test_every_line_of_a_json_log_is_an_object(
    tmp_path: Path, number: signal.Signals
) -> None:
    """The address and the end too; each has the process that wrote it, which ends with 0.

    SIGINT is ignored at its start, as in what a shell script starts in the background.
    """
    command = ["sh", "-c", "trap '' INT; exec \"$0\" -m app", sys.executable]
    settings = {"PURGATORY_DATA_DIR": str(tmp_path), "PURGATORY_LOG_FORMAT": "json"}
    with ProcessServer(command, PORT="0", **settings) as server:
        server.wait_started()
        metrics = await ask(server.address, "GET", "/metrics")
        server.process.send_signal(number)
        server.wait()
    assert server.process.returncode == 0
    lines = [json.loads(line) for line in server.log]
    assert {line["pid"] for line in lines} == {server.process.pid}
    [started] = [line for line in lines if "url" in line]
    assert started["url"] == f"http://127.0.0.1:{server.address[1]}"
    assert started["message"].startswith("Purgatory on http://")
    for page in ("/docs", "/purgatory/dashboard"):
        assert f"{started['url']}{page}" in started["message"]
    [asked] = [line for line in lines if line.get("target") == "/metrics"]
    assert asked["status"] == metrics.status == 404
    assert "PURGATORY_METRICS=true" in metrics.json()["detail"]
    assert lines[-1]["message"] == "Purgatory has stopped."


async def test_a_response_that_arrived_has_its_line(tmp_path: Path) -> None:
    """Even if the process is killed at that moment: lines are written before the responses."""
    with serve_service(PURGATORY_DATA_DIR=str(tmp_path)) as server:
        asked = [
            ask(server.address, "POST", f"/purgatory/keys/key-{index}", {"value": index})
            for index in range(50)
        ]
        assert [response.status for response in await asyncio.gather(*asked)] == [201] * 50
    log = "".join(server.log)
    assert all(f'"POST /purgatory/keys/key-{index} HTTP/1.1" 201' in log for index in range(50))


async def test_the_lines_of_what_it_uses_have_their_time_too() -> None:
    """Warnings and errors, whoever's they are; what is less than that is not said."""
    script = (
        "import logging.config; from app.log_format import log_config;"
        "logging.config.dictConfig(log_config('debug'));"
        "logging.getLogger('asyncio').error('a task failed');"
        "logging.getLogger('httpx').info('https://shop.example/hook?token=hunter2')"
    )
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", script, stderr=asyncio.subprocess.PIPE
    )
    _, said = await process.communicate()
    assert re.fullmatch(f"{TIME}ERROR: +a task failed\n", said.decode())


async def test_a_port_in_use_is_an_error_before_anything_is_opened(tmp_path: Path) -> None:
    """One sentence, which names the way out; no address, no log, no file."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "app",
            env={**os.environ, "PORT": str(port), "PURGATORY_DATA_DIR": str(tmp_path / "data")},
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        out, said = await process.communicate()
    assert (process.returncode, out) == (1, b"")
    assert said.decode().count("\n") == 1
    assert f"port {port}: " in said.decode() and f"make run PORT={port + 1}" in said.decode()
    assert not (tmp_path / "data").exists()


def test_a_refused_start_is_a_line_of_the_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """In JSON, too: a port in use, a journal that cannot be written, several wrong settings."""
    (tmp_path / "file").touch()
    monkeypatch.setattr(sys, "argv", ["app"])
    monkeypatch.setattr(logging.config, "dictConfig", lambda config: None)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        refused = [
            (1, {"PORT": str(listener.getsockname()[1])}, ["in use"]),
            (2, {"PORT": "0", "PURGATORY_JOURNAL_DIR": f"{tmp_path}/file"}, ["JOURNAL_DIR"]),
            (2, {"PORT": "x", "PURGATORY_MAX_WAIT": "y"}, ["PORT", "MAX_WAIT"]),
        ]
        for status, variables, reasons in refused:
            with monkeypatch.context() as patch:
                patch.setenv("PURGATORY_DATA_DIR", str(tmp_path / "data"))
                patch.setenv("PURGATORY_LOG_FORMAT", "json")
                for name, value in variables.items():
                    patch.setenv(name, value)
                assert main() == status
            lines = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
            found = {(line["level"], line["action"], line["logger"]) for line in lines}
            assert found == {("error", "start-refused", "purgatory.app")}
            for reason, line in zip(reasons, lines, strict=True):
                assert reason in line["message"]
