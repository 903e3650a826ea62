"""Look-ups of hosts, in threads, and the check of what they find."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import socket
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import Any, Final

from purgatory.job_errors import RetryJobError
from purgatory.jobs.callbacks.hosts import how_to_allow
from purgatory.jobs.callbacks.public_address import Address, is_public
from purgatory.jobs.handlers.fair_slots import Lane
from purgatory.jobs.handlers.threads import JobThreads, ThreadLeftError

LookUp = Callable[..., list[Any]]
"""`socket.getaddrinfo`, or a function that is called like it."""

# Each is checked, and a name server can return thousands.
MAX_ADDRESSES: Final = 100


class DnsLookups:
    """Looks hosts up for callbacks that have a slot, in a thread for each slot."""

    def __init__(self, look_up: LookUp, max_threads: int) -> None:
        """Call `look_up` in up to `max_threads` threads."""
        # Not those of the event loop, which has a few for everything in the process, and waits for
        # them when it ends: a silent name server blocks a thread for half a minute.
        self._threads = JobThreads(max_threads)
        self._look_up = look_up

    async def address(self, lane: Lane, *, port: int, allow_private: bool) -> Address:
        """Return the address at which to call the host of `lane`.

        The caller connects to this address and to no other, which makes DNS rebinding ineffective.
        Raises RetryJobError for a host that has any private address, or more than 100 addresses,
        and if the look-up fails.
        """
        host = lane.host
        try:
            found = await self._threads.run(
                partial(self._look_up, host, port, type=socket.SOCK_STREAM)
            )
        except (OSError, UnicodeError) as exc:
            raise RetryJobError(f"host {host!r} cannot be looked up ({exc})") from exc
        except ThreadLeftError as exc:
            # A look-up has no side effects: its thread may continue.
            _keep_slot(lane, exc.call)
            raise asyncio.CancelledError from exc
        if len(found) > MAX_ADDRESSES:
            raise RetryJobError(
                f"host {host!r} has {len(found)} addresses, more than {MAX_ADDRESSES}"
            )
        addresses = [ipaddress.ip_address(str(entry[4][0]).partition("%")[0]) for entry in found]
        if not addresses:
            raise RetryJobError(f"host {host!r} has no address")
        if not allow_private and not all(map(is_public, addresses)):
            # Retried: a service that was started without the setting must not fail its jobs for
            # good. Without the address, which everyone who may read the job would learn.
            raise RetryJobError(how_to_allow(host, port))
        return addresses[0]

    def shut(self) -> None:
        """Begin no further look-up; the threads of others may continue."""
        self._threads.shut()


def _keep_slot(lane: Lane, call: Future[Any]) -> None:
    """Take a slot until `call` ends: that of its callback is released before."""
    loop = asyncio.get_running_loop()
    lane.take()

    def release(call: Future[Any]) -> None:
        # In the thread. If the loop is closed, its slots are not used any more.
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(lane.release)

    call.add_done_callback(release)
