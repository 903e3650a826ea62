"""How the service's first process watches over its workers."""

from __future__ import annotations

import multiprocessing
import signal
import socket
from collections.abc import Iterator
from typing import Any

import pytest
from uvicorn.supervisors import Multiprocess

from app import server
from app.settings import Settings
from purgatory.testing import MockClock


class SlowWorker:
    """A worker whose process runs, and which has not begun to answer."""

    def __init__(self) -> None:
        context = multiprocessing.get_context("spawn")
        self.process = context.Process(target=signal.pause)
        self.process.start()


@pytest.fixture
def worker() -> Iterator[SlowWorker]:
    """A worker, which is ended with the test."""
    found = SlowWorker()
    yield found
    found.process.kill()
    found.process.join()


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[list[Any]]:
    """The workers that uvicorn asks, and would kill for no answer, at each look."""
    looks: list[list[Any]] = []
    monkeypatch.setattr(
        Multiprocess, "keep_subprocess_alive", lambda self: looks.append([*self.processes])
    )
    return looks


@pytest.fixture
def supervisor() -> Iterator[server._Supervisor]:
    """The first process, with the signals of this one restored at the end."""
    known = {each: signal.getsignal(each) for each in signal.valid_signals()}
    settings = Settings()
    config = server.server_config("app.server:create_worker_app", settings)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        found = server._Supervisor(config, [listener], settings)
        found._is_printed = True
        yield found
    for number, handler in known.items():
        if number not in (signal.SIGKILL, signal.SIGSTOP) and callable(handler):
            signal.signal(number, handler)


def test_a_worker_is_asked_once_it_may_have_started(
    supervisor: Any, worker: SlowWorker, asked: list[list[Any]]
) -> None:
    """Not in its first half minute, in which a busy machine may not have imported all."""
    clock = supervisor._clock = MockClock()
    supervisor.processes = [worker]
    supervisor.keep_subprocess_alive()
    clock.advance(29_000)
    supervisor.keep_subprocess_alive()
    assert (asked, supervisor.processes) == ([[], []], [worker])
    clock.advance(2_000)
    supervisor.keep_subprocess_alive()
    assert (asked[2], supervisor.processes) == ([worker], [worker])


def test_a_worker_that_ended_is_replaced_at_once(
    supervisor: Any, worker: SlowWorker, asked: list[list[Any]]
) -> None:
    """Also if it was about to start."""
    supervisor.processes = [worker]
    worker.process.kill()
    worker.process.join()
    supervisor.keep_subprocess_alive()
    assert asked == [[worker]]


def test_a_worker_that_hangs_does_not_hold_up_a_stop(supervisor: Any) -> None:
    """A signal waits for as long as uvicorn waits for an answer."""
    assert supervisor.config.timeout_worker_healthcheck <= 5
