"""The streams of a router: parked, sent comments, and known to its registry."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from purgatory.fastapi.http.bounds.deadlines import Deadlines
from purgatory.fastapi.http.problem_mapping import problem_of_exception
from purgatory.fastapi.http.raw_request import RawRequest
from purgatory.fastapi.http.raw_response import RawResponse
from purgatory.fastapi.sse.event_bytes import EventEncoder, problem_stream
from purgatory.fastapi.watch.wait_registry import WaitRegistry

if TYPE_CHECKING:
    from purgatory.fastapi.sse.parked_stream import ParkedStream


class EventStreams:
    """What the streams of one router share."""

    def __init__(self, registry: WaitRegistry) -> None:
        """Park streams in `registry`."""
        self.registry = registry
        self.encoder = EventEncoder(registry.responses)
        # Comments: all streams have the same interval, each since its own begin.
        self._beats: Deadlines[ParkedStream] | None = None

    def add(self, stream: ParkedStream) -> None:
        """Have `stream` send a comment in each interval from now on, until it ends."""
        loop = asyncio.get_running_loop()
        if self._beats is None or self._beats.loop is not loop:
            self._beats = Deadlines(loop, self.registry.settings.heartbeat, self._beat)
        self._beats.add(stream)

    def discard(self, stream: ParkedStream) -> None:
        """Forget a stream that has ended. Idempotent."""
        if self._beats is not None:
            self._beats.discard(stream)

    def refusal(self, raw: RawRequest, error: Exception) -> RawResponse:
        """Return the response to a stream that could not be parked."""
        problem = problem_of_exception(error, "GET", raw.path)
        prefix = self.registry.context.prefix
        found = problem_stream(problem, prefix, raw.path)
        return problem.response(prefix, raw.path) if found is None else found

    def _beat(self, stream: ParkedStream) -> None:
        stream.beat()
        if not stream.is_completed:
            self.add(stream)
