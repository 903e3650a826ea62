"""What the service says while it runs."""

from __future__ import annotations

import asyncio
import os
import re
import socket
import sys
from pathlib import Path

from tests.acceptance.client import ask
from tests.acceptance.process_server import ProcessServer

TIME = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z "


async def test_each_line_has_its_time(tmp_path: Path) -> None:
    """Its own lines, those of the server and those of requests; and no value of anything."""
    server = ProcessServer(
        [sys.executable, "-m", "app"],
        PORT="0",
        PURGATORY_DATA_DIR=str(tmp_path),
        PURGATORY_MAX_PARKD="hunter2",
    )
    try:
        server.wait_started()
        await ask(server.address, "POST", "/purgatory/keys/k", {"value": "hunter2"})
        server.terminate()
        server.wait()
    finally:
        server.kill()
    # To whoever started it, and not a line of the log.
    lines = [line for line in server.log if not line.startswith("Purgatory on http://127.0.0.1:")]
    assert len(lines) == len(server.log) - 1
    for line in lines:
        assert re.match(f"{TIME}(INFO|WARNING): ", line), line
    log = "".join(lines)
    assert "PURGATORY_MAX_PARKD is not a setting and is ignored: did you mean PURGATORY_M" in log
    assert re.search(f'{TIME}INFO: +127.0.0.1:[0-9]+ - "POST /purgatory/keys/k HTTP/1.1" 201', log)
    assert "hunter2" not in log


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
