"""Several workers that share nothing are refused, however a real server was told to start them."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from tests.acceptance.process_server import ProcessServer
from tests.acceptance.server_commands import APP
from tests.needs import STOPS_IF_A_WORKER_CANNOT_START
from tests.nightly import NIGHTLY

_UVICORN = f"-m uvicorn {APP} --port 0"
_GUNICORN = f"-m gunicorn {APP} -k uvicorn_worker.UvicornWorker -b 127.0.0.1:0 --no-control-socket"
_RUN = f"import uvicorn; uvicorn.run({APP!r}, port=0, workers=2)"

_Cases = dict[str, tuple[str, dict[str, str]]]

SHORT: _Cases = {
    "uvicorn --workers": (f"{_UVICORN} --workers 2", {}),
    "uvicorn WEB_CONCURRENCY": (_UVICORN, {"WEB_CONCURRENCY": "2"}),
    "uvicorn.run": (f"-c|{_RUN}", {}),
    "gunicorn -w": (f"{_GUNICORN} -w2", {}),
    "gunicorn -c": (f"{_GUNICORN} -c {{folder}}/gunicorn.conf.py", {}),
    "GUNICORN_CMD_ARGS": (_GUNICORN, {"GUNICORN_CMD_ARGS": "--workers=2"}),
    "gunicorn WEB_CONCURRENCY": (_GUNICORN, {"WEB_CONCURRENCY": "2"}),
}
# These print what was raised more than once.
LONG: _Cases = {
    "hypercorn -w": (f"-m hypercorn {APP} -b 127.0.0.1:0 -w 2", {}),
    "granian --workers": (f"-m granian {APP} --interface asgi --port 0 --workers 2", {}),
}


def _marked(name: str) -> Any:
    marks = [STOPS_IF_A_WORKER_CANNOT_START] if "uvicorn" in name else []
    # By day one that asks uvicorn's own settings, and one that asks for another server's.
    marks += [] if name in ("uvicorn.run", "gunicorn -c") else [NIGHTLY]
    return pytest.param(name, marks=marks)


@pytest.mark.parametrize("name", [_marked(name) for name in [*SHORT, *LONG]])
def test_they_are_refused(name: str, tmp_path: Path) -> None:
    """The log says why, and the line that fixes it."""
    command, environment = (SHORT | LONG)[name]
    (tmp_path / "gunicorn.conf.py").write_text("workers = 2\n")
    command = command.format(folder=tmp_path)
    arguments = command.split("|") if "|" in command else command.split()
    with ProcessServer([sys.executable, *arguments], **environment) as server:
        server.wait()
        log = "".join(server.log)
        said = [line for line in server.log if "2 workers would each keep signals" in line]
        if "uvicorn" in name:
            # That is the whole record.
            assert said[0].startswith("ERROR:    2 workers") and "\n" not in server.log, log
        # Once for each worker that was started until the server gave up.
        assert said and (name in LONG or len(said) <= 2), log
        assert 'Purgatory(signals=RedisSignals("redis://localhost:6379"))' in said[0]
        assert "allow_separate_workers=True" in said[0]
        assert "Application startup complete" not in log
        assert 'File "' not in log or "gunicorn.errors.HaltServer" in log, log
        # gunicorn shows one of its own if both workers end at the same time.
        assert name in LONG or "Traceback" not in log or "gunicorn.errors.HaltServer" in log, log
