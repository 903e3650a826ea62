"""The handlers of signals that tell a process to stop."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Iterator
from types import FrameType

import pytest

from purgatory import Outcome, Purgatory, Status
from purgatory.fastapi.servers.server_process import STOP_SIGNALS, drain_on_stop
from tests.conftest import anyio_backend as anyio_backend  # both loops
from tests.patience import until_in_turns


class Handler:
    """A handler as a server installs it: notes what it was called with."""

    def __init__(self) -> None:
        self.calls: list[int] = []

    def __call__(self, number: int, frame: FrameType | None) -> None:
        self.calls.append(number)


@pytest.fixture
def server_handler() -> Iterator[Handler]:
    """The server's own handler, installed before ours."""
    handler = Handler()
    before = {number: signal.signal(number, handler) for number in STOP_SIGNALS}
    yield handler
    for number, previous in before.items():
        signal.signal(number, previous)


@pytest.mark.parametrize("number", STOP_SIGNALS)
async def test_a_signal_drains_and_is_passed_on(
    server_handler: Handler, number: signal.Signals
) -> None:
    """Whoever is parked is answered, and the server does what it would have done."""
    async with Purgatory() as purgatory:
        with drain_on_stop(purgatory):
            parked: asyncio.Task[Outcome] = asyncio.ensure_future(purgatory.park("k", timeout=60.0))
            await asyncio.sleep(0)
            signal.raise_signal(number)
            assert (await parked).status is Status.DRAINED
            assert server_handler.calls == [number]
            signal.raise_signal(number)
            assert server_handler.calls == [number, number]


@pytest.mark.usefixtures("server_handler")
async def test_handlers_are_put_back(server_handler: Handler) -> None:
    """After the lifespan the server's handlers are in their place again."""
    async with Purgatory() as purgatory:
        with drain_on_stop(purgatory):
            for number in STOP_SIGNALS:
                assert signal.getsignal(number) is not server_handler
        for number in STOP_SIGNALS:
            assert signal.getsignal(number) is server_handler
        signal.raise_signal(signal.SIGTERM)
        assert not purgatory.is_draining
    assert server_handler.calls == [signal.SIGTERM]


async def test_entered_twice(server_handler: Handler) -> None:
    """A router included twice enters twice: the server's handler is called once."""
    async with Purgatory() as purgatory:
        with drain_on_stop(purgatory), drain_on_stop(purgatory):
            signal.raise_signal(signal.SIGTERM)
            await until_in_turns(lambda: purgatory.is_draining)
    assert server_handler.calls == [signal.SIGTERM]
    assert signal.getsignal(signal.SIGTERM) is server_handler


async def test_a_handler_that_came_later_stays(server_handler: Handler) -> None:
    """What the application puts in front of ours is not taken away."""
    later = Handler()
    async with Purgatory() as purgatory:
        with drain_on_stop(purgatory):
            signal.signal(signal.SIGTERM, later)
        assert signal.getsignal(signal.SIGTERM) is later
        assert signal.getsignal(signal.SIGINT) is server_handler


def test_one_that_is_called_after_the_loop_is_closed(server_handler: Handler) -> None:
    """Ours may still be called by one that came later: the server's is, all the same."""

    async def install() -> None:
        async with Purgatory() as purgatory:
            with drain_on_stop(purgatory):
                ours = signal.getsignal(signal.SIGTERM)
                assert callable(ours)
                signal.signal(signal.SIGTERM, lambda number, frame: ours(number, frame))

    asyncio.run(install())
    signal.raise_signal(signal.SIGTERM)
    assert server_handler.calls == [signal.SIGTERM]


async def test_one_that_is_called_after_the_next_opening(server_handler: Handler) -> None:
    """It belongs to a start of the application that is over."""
    purgatory = Purgatory()
    async with purgatory:
        with drain_on_stop(purgatory):
            ours = signal.getsignal(signal.SIGTERM)
            assert callable(ours)
            signal.signal(signal.SIGTERM, lambda number, frame: ours(number, frame))
    async with purgatory:
        signal.raise_signal(signal.SIGTERM)
        await asyncio.sleep(0)
        assert (server_handler.calls, purgatory.is_draining) == ([signal.SIGTERM], False)


@pytest.mark.parametrize("nobody", [signal.SIG_DFL, signal.SIG_IGN])
@pytest.mark.usefixtures("server_handler")
async def test_a_signal_that_nobody_handles_is_left_alone(nobody: signal.Handlers) -> None:
    """Where no one shuts down in good order there is nothing to wait for."""
    signal.signal(signal.SIGTERM, nobody)
    async with Purgatory() as purgatory:
        with drain_on_stop(purgatory):
            assert signal.getsignal(signal.SIGTERM) is nobody


@pytest.mark.usefixtures("server_handler")
def test_in_another_thread_it_does_nothing(server_handler: Handler) -> None:
    """Only the main thread may install handlers: elsewhere there is no error."""
    found = []

    async def enter() -> None:
        async with Purgatory() as purgatory:
            with drain_on_stop(purgatory):
                found.append(signal.getsignal(signal.SIGTERM))

    thread = threading.Thread(target=asyncio.run, args=(enter(),))
    thread.start()
    thread.join()
    assert found == [server_handler]


@pytest.mark.usefixtures("server_handler")
async def test_a_purgatory_that_is_closed_already() -> None:
    """A signal after it was closed is only passed on."""
    purgatory = Purgatory()
    with drain_on_stop(purgatory):
        signal.raise_signal(signal.SIGTERM)
        await asyncio.sleep(0)
        assert not purgatory.is_draining
