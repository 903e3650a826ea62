"""Clients that park and are woken, again and again."""

from __future__ import annotations

import selectors
import time
from collections import deque
from dataclasses import dataclass, field

from tests.benchmarks.http.client import Address, Client
from tests.benchmarks.http.requests import fire, watch


@dataclass(slots=True)
class Cycles:
    """What was counted."""

    per_second: float = 0.0
    wake_up: list[float] = field(default_factory=list)
    """Seconds from the sending of the fire to the woken client's answer, for each cycle."""
    missed: int = 0
    """Fires that came before the park that they were meant for, and were sent again."""


class _Pair:
    """A client that parks, and one that fires what it waits for."""

    def __init__(self, address: Address, watched: str, number: int) -> None:
        self.watcher = Client(address)
        self.firer = Client(address)
        self.missing = 0
        self.parked = 0
        self.fired = 0
        self.fired_at = 0.0
        self._watch = watch(watched, f"cycle-{number}", 50)
        self._fire = fire(f"cycle-{number}")

    def park(self, number: int) -> None:
        self.missing = 2
        self.parked = number
        self.watcher.send(self._watch)

    def fire(self, number: int) -> None:
        self.fired = number
        self.fired_at = time.perf_counter()
        self.firer.send(self._fire)


class _Run:
    """Some pairs that go round.

    A server reads what has come on many connections at once, in an order of its own. So a pair
    fires only once a request was answered that was sent after its park: that is read by then, or
    will be before the fire. It is all the same where no other answer is to come.
    """

    # Requests are numbered in the order in which they are sent.
    # Invariant: _waiting is in the order of the pairs' parks, and each of them has not fired yet.
    def __init__(self, address: Address, watched: str, clients: int, pause: float) -> None:
        self.found = Cycles()
        self._pause = pause
        self._sent = 0
        self._waiting: deque[_Pair] = deque()
        self._under_way = 0
        self._selector = selectors.DefaultSelector()
        self._pairs = [_Pair(address, watched, number) for number in range(clients)]
        for pair in self._pairs:
            for client in (pair.watcher, pair.firer):
                self._selector.register(client.socket, selectors.EVENT_READ, (pair, client))

    def run(self, seconds: float) -> Cycles:
        started_at = now = time.perf_counter()
        for pair in self._pairs:
            self._park(pair)
        while now < started_at + seconds:
            if not self._under_way:
                time.sleep(self._pause)
                self._fire_those_before(self._sent + 1)
            for key, _ in self._selector.select(1.0):
                self._receive(*key.data)
            now = time.perf_counter()
        self.found.per_second = len(self.found.wake_up) / (now - started_at)
        for pair in self._pairs:
            pair.watcher.close()
            pair.firer.close()
        self._selector.close()
        return self.found

    def _park(self, pair: _Pair) -> None:
        self._sent += 1
        pair.park(self._sent)
        self._waiting.append(pair)

    def _fire(self, pair: _Pair) -> None:
        self._sent += 1
        self._under_way += 1
        pair.fire(self._sent)

    def _fire_those_before(self, number: int) -> None:
        while self._waiting and self._waiting[0].parked < number:
            self._fire(self._waiting.popleft())

    def _receive(self, pair: _Pair, client: Client) -> None:
        answer = client.receive()
        if answer is None:
            return
        if client is pair.watcher:
            self.found.wake_up.append(time.perf_counter() - pair.fired_at)
        else:
            self._under_way -= 1
            self._fire_those_before(pair.fired)
            if b'"completed":0' in answer:
                self.found.missed += 1
                self._fire(pair)
                return
        pair.missing -= 1
        if not pair.missing:
            self._park(pair)


def run_cycles(
    address: Address, watched: str, clients: int, seconds: float, *, pause: float = 0.0
) -> Cycles:
    """Run `clients` pairs for some time, which wait at the address `watched`.

    With a pause, one alone is parked long before its fire.
    """
    return _Run(address, watched, clients, pause).run(seconds)
