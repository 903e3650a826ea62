"""The service's settings, pages, first process and standard streams."""

from __future__ import annotations

import multiprocessing
import signal
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError
from starlette.testclient import TestClient
from uvicorn.supervisors import Multiprocess

from app import server
from app.main import create_app
from app.settings import Settings
from app.unknown_settings import unknown_settings
from purgatory import Limits
from purgatory.testing import MockClock
from tests.cases import cases


def test_settings_are_known() -> None:
    """Each of them, in any case, and what others read."""
    names = [
        field.validation_alias or f"PURGATORY_{name.upper()}"
        for name, field in Settings.model_fields.items()
    ]
    environment = dict.fromkeys([*map(str, names), "purgatory_max_wait", "PATH"], "")
    of_others = [f"PURGATORY_{name}" for name in ("PURE_PYTHON", "STORE", "TOKEN", "URL")]
    assert unknown_settings(environment | dict.fromkeys(of_others, "1")) == []


@cases(
    "variable, hint",
    [
        ("PURGATORY_MAX_PARKD", "did you mean PURGATORY_MAX_PARKED?"),
        ("PURGATORY_TOKNS", "did you mean PURGATORY_TOKENS?"),
        ("purgatory_job_leese", "did you mean PURGATORY_JOB_LEASE?"),
        ("PURGATORY_HOST", "did you mean HOST?"),
        ("PURGATORY_PORT", "did you mean PORT?"),
        ("PURGATORY_COLOUR_OF_THE_SKY", "see docs/reference/service.md"),
    ],
)
def test_what_is_nearly_a_setting_is_named(variable: str, hint: str) -> None:
    """With the setting that was meant, and without the value, which may be a secret."""
    [sentence] = unknown_settings({variable: "hunter2"})
    assert sentence.startswith(f"{variable} is not a setting") and sentence.endswith(hint)
    assert "hunter2" not in sentence


def test_what_kubernetes_sets_is_no_mistake() -> None:
    """For a Service that is called purgatory."""
    environment = {
        "PURGATORY_SERVICE_HOST": "10.0.0.1",
        "PURGATORY_SERVICE_PORT_HTTP": "8000",
        "PURGATORY_PORT": "tcp://10.0.0.1:8000",
        "PURGATORY_PORT_8000_TCP_ADDR": "10.0.0.1",
    }
    assert unknown_settings(environment) == []
    assert len(unknown_settings({**environment, "PURGATORY_SKY": "blue"})) == 1


def test_the_lease_of_jobs_is_a_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    """In seconds, within bounds."""
    assert Settings().job_settings().lease_ms == 15_000
    monkeypatch.setenv("PURGATORY_JOB_LEASE", "2.5")
    assert Settings().job_settings().lease_ms == 2_500
    for bad in ("0", "3601", "nan", "soon"):
        monkeypatch.setenv("PURGATORY_JOB_LEASE", bad)
        with pytest.raises(ValidationError, match="job_lease"):
            Settings()


@cases("name", ["max_signal_age", "journal_max_age", "callback_timeout", "job_grace", "max_wait"])
@cases("value", ["inf", "nan"])
def test_seconds_are_a_finite_number(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    """Each is refused by its own name."""
    monkeypatch.setenv(f"PURGATORY_{name.upper()}", value)
    with pytest.raises(ValidationError, match=name):
        Settings()


def test_limits_that_do_not_fit_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who raises one is told of the other, by the names of the variables."""
    monkeypatch.setenv("PURGATORY_MAX_VALUE_BYTES", "100000000")
    with pytest.raises(ValidationError) as caught:
        Settings()
    sentence = str(caught.value)
    assert "PURGATORY_MAX_SIGNAL_BYTES is 67108864, less than" in sentence
    assert "PURGATORY_MAX_VALUE_BYTES, 100000000: raise it" in sentence


def test_every_limit_is_a_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    """But for that on timeouts, which PURGATORY_MAX_WAIT is for."""
    names = asdict(Limits()).keys() - {"max_timeout"}
    # Downwards: all signals together have room for one value.
    values = {name: 100 - number for number, name in enumerate(sorted(names))}
    for name, value in values.items():
        monkeypatch.setenv(f"PURGATORY_{name.upper()}", str(value))
    limits = asdict(Settings().limits())
    assert {name: limits[name] for name in names} == values


@cases("host, address", [("127.0.0.1", "http://127.0.0.1:8000"), ("::1", "http://[::1]:8000")])
def test_the_address_is_one_to_click_on(
    monkeypatch: pytest.MonkeyPatch, host: str, address: str
) -> None:
    """That of IPv6 is in brackets (RFC 3986)."""
    monkeypatch.setenv("HOST", host)
    assert Settings().address == address


@cases("page", ["/docs", "/redoc", "/"])
def test_head_is_get_without_a_body(page: str) -> None:
    """As FastAPI's own pages answer it, which these replace."""
    client = TestClient(create_app(Settings()))
    head, get = client.head(page), client.get(page)
    assert (head.status_code, head.headers) == (200, get.headers)
    assert head.content == b"" != get.content


def test_a_worker_is_asked_once_it_may_have_started(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not in its first half minute, in which a busy machine may not have imported all.

    Unless it has ended. A signal waits for as long as uvicorn waits for an answer.
    """
    asked: list[list[Any]] = []
    monkeypatch.setattr(
        Multiprocess, "keep_subprocess_alive", lambda self: asked.append([*self.processes])
    )
    config = server.server_config("app.server:create_worker_app", Settings())
    assert config.timeout_worker_healthcheck <= 5
    supervisor: Any = object.__new__(server._Supervisor)  # Else it takes this process's signals.
    clock = MockClock()
    process = multiprocessing.get_context("spawn").Process(target=signal.pause)
    workers = [type("Worker", (), {"process": process})() for _ in range(2)]
    vars(supervisor).update(_is_printed=True, _clock=clock, _starts_ns={}, processes=workers[:1])
    process.start()
    try:
        for ms in (0, 29_000, 2_000):
            clock.advance(ms)
            supervisor.keep_subprocess_alive()
        assert (asked, supervisor.processes) == ([[], [], workers[:1]], workers[:1])
        supervisor.processes.append(workers[1])
        supervisor.keep_subprocess_alive()
        assert asked[-1] == workers[:1]
    finally:
        process.kill()
        process.join()
    supervisor.keep_subprocess_alive()
    assert asked[-1] == workers


SHOW = """
import sys
from purgatory.environment import discard_closed_streams

discard_closed_streams()
print("thrown away", file=sys.stderr)
with open(sys.argv[1], "w") as file:
    print(sys.stdin.fileno(), sys.stdout.fileno(), sys.stderr.fileno(), file.fileno(), file=file)
"""


@pytest.mark.parametrize("closed", [">&-", "<&-", "<&- >&- 2>&-"])
def test_each_stream_keeps_its_number(closed: str, tmp_path: Path) -> None:
    """What is opened later must not be where a fault of the process is written."""
    found = tmp_path / "found"
    command = [sys.executable, "-c", SHOW, str(found)]
    subprocess.run(["sh", "-c", f'"$@" {closed}', "sh", *command], check=True)
    *streams, later = map(int, found.read_text().split())
    assert streams == [0, 1, 2] and later > 2


def test_the_service_starts_without_what_it_may_not_need() -> None:
    """Each of these takes a tenth of a second to import: clients, terminals, stores."""
    late = ["httpx", "redis", "rich", "sqlalchemy", "typer"]
    code = f"import app.__main__, sys; print([name for name in {late} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
