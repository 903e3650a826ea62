"""Many clients in one thread."""

from __future__ import annotations

import selectors
import time
from collections.abc import Callable, Sequence

from tests.benchmarks.http.client import Address, Client

# Connections that are made before the server has time to accept them: fewer than its backlog.
CONNECT_AT_ONCE = 250
# Requests that are sent before the server has time to read them.
SEND_AT_ONCE = 50
PAUSE = 0.0005


class Crowd:
    """`size` clients of one server."""

    def __init__(self, address: Address, size: int) -> None:
        self._selector = selectors.DefaultSelector()
        self.members: list[Client] = []
        for number in range(size):
            member = Client(address)
            self._selector.register(member.socket, selectors.EVENT_READ, number)
            self.members.append(member)
            if number % CONNECT_AT_ONCE == 0:
                time.sleep(0.001)

    def send(self, request: Callable[[int], bytes], numbers: range | None = None) -> None:
        """Send the requests of all members, or of some, with a pause now and then."""
        for number in numbers or range(len(self.members)):
            self.members[number].send(request(number))
            if number % SEND_AT_ONCE == 0:
                time.sleep(PAUSE)

    def answers(self, timeout: float) -> Sequence[float]:
        """Receive an answer for each member; return when each was whole."""
        at = [0.0] * len(self.members)
        receive = [member.receive for member in self.members]
        missing = len(self.members)
        until = time.perf_counter() + timeout
        while missing:
            for key, _ in self._selector.select(1.0):
                if receive[key.data]() is not None:
                    at[key.data] = time.perf_counter()
                    missing -= 1
            if time.perf_counter() > until:
                raise TimeoutError(f"{missing} answers did not come")
        return at

    def close(self) -> None:
        """Leave, all of them."""
        for member in self.members:
            member.close()
        self._selector.close()
