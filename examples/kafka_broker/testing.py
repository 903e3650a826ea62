"""The broker in a thread, for clients that block: confluent-kafka, kafka-python, other processes.

Code that runs on asyncio needs none of this: `async with KafkaBroker(...)` on the loop of the test.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future
from types import TracebackType
from typing import Any, Self, TypeVar

from examples.kafka_broker.broker import KafkaBroker

T = TypeVar("T")


class BrokerThread:
    """A KafkaBroker on an event loop of its own, for the duration of `with`; in real time."""

    def __init__(self, *args: Any, **options: Any) -> None:
        """Prepare `KafkaBroker(*args, **options)`."""
        self.broker = KafkaBroker(*args, **options)
        self._is_ready: Future[asyncio.AbstractEventLoop] = Future()
        self._stop = asyncio.Event()
        self._thread = threading.Thread(target=self._run, name="kafka-broker", daemon=True)

    @property
    def address(self) -> str:
        """Host and port, for `bootstrap.servers`."""
        return self.broker.address

    def __enter__(self) -> Self:
        """Start; raise what the start has raised."""
        self._thread.start()
        self._loop = self._is_ready.result()
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Stop."""
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()

    def call(self, function: Callable[[KafkaBroker], T]) -> T:
        """Return `function(broker)`, called on the loop of the broker: it belongs there."""

        async def run() -> T:
            return function(self.broker)

        return asyncio.run_coroutine_threadsafe(run(), self._loop).result()

    def _run(self) -> None:
        try:
            asyncio.run(self._serve())
        except BaseException as exc:
            if self._is_ready.done():
                raise
            self._is_ready.set_exception(exc)

    async def _serve(self) -> None:
        async with self.broker:
            self._is_ready.set_result(asyncio.get_running_loop())
            await self._stop.wait()
