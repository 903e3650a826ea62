"""Addresses of callbacks: sets of hosts, protection against private ones (SSRF), look-ups."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import socket
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from functools import partial
from typing import Any, Final
from urllib.parse import urlsplit

from purgatory.job_errors import RetryJobError
from purgatory.jobs.handlers.fair_slots import Lane
from purgatory.jobs.handlers.threads import DaemonThreads, ThreadLeftError

DEFAULT_PORTS: Final = {"http": 80, "https": 443}


class Hosts:
    """Hosts by name or address: `name` at ports 80 and 443, `name:port` at that port only."""

    def __init__(self, hosts: Iterable[str]) -> None:
        """Parse `hosts`; an IPv6 address is in brackets.

        Raises TypeError for a string of hosts, and ValueError for what is not a host.
        """
        self._allowed = {
            (host, wanted)
            for host, port in map(parsed_host, listed_hosts(hosts))
            for wanted in ((port,) if port is not None else DEFAULT_PORTS.values())
        }

    def __contains__(self, place: tuple[str, int]) -> bool:
        """Return True iff the host is in the set at the port."""
        host, port = place
        return (host.lower(), port) in self._allowed


def listed_hosts(hosts: Iterable[str]) -> Iterable[str]:
    """Return `hosts`; raise TypeError for a single string, whose characters would be the hosts."""
    if isinstance(hosts, str):
        raise TypeError(f"hosts is the string {hosts!r}: give a list of hosts")
    return hosts


def parsed_host(text: str) -> tuple[str, int | None]:
    """Return the host in lower case, and its port if it has one; raise ValueError."""
    try:
        parts = urlsplit(f"//{text}")
        host, port = parts.hostname, parts.port
    except ValueError:
        host = port = None
    if not host or parts.netloc != text or "@" in text:
        raise ValueError(
            f"{text!r} is not a host: give name, name:port, or an address like "
            "those, of IPv6 in brackets"
        )
    return host, port


def how_to_allow(host: str, port: int) -> str:
    """Return the text of the error of a host that is not on the public internet.

    It names what `Hosts` takes to allow that host at that port.
    """
    shown = f"[{host}]" if ":" in host else host
    if port not in DEFAULT_PORTS.values():
        shown += f":{port}"
    return (
        f"host {host!r} is not on the public internet: operators can allow {shown!r} with "
        "PURGATORY_CALLBACK_ALLOWED_HOSTS, or all such callbacks with "
        "PURGATORY_CALLBACK_ALLOW_PRIVATE; in Python with Webhook(allowed_hosts=) or "
        "allow_private="
    )


Address = ipaddress.IPv4Address | ipaddress.IPv6Address

# All unicast addresses ever assigned. Site-local and IPv4-compatible addresses are outside, though
# `is_global` accepts them.
_GLOBAL_UNICAST = ipaddress.IPv6Network("2000::/3")
_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")
# For protocols, not for hosts (RFC 6890); some versions of Python know only parts of it.
_PROTOCOLS = ipaddress.IPv4Network("192.0.0.0/24")
# Azure's platform: global by number, but answered by the host of a virtual machine, with its keys.
_AZURE_PLATFORM = ipaddress.IPv4Address("168.63.129.16")


def is_private_host(host: str) -> bool:
    """Return True iff `host` is localhost or a private address, without looking it up.

    False for all other names, and for other notations of an address.
    """
    if host == "localhost" or host.endswith(".localhost"):
        # Always the loopback interface (RFC 6761, 6.3).
        return True
    try:
        return not is_public(ipaddress.ip_address(host.partition("%")[0]))
    except ValueError:
        return False


def is_public(address: Address) -> bool:
    """Return True iff `address` is on the public internet, also if embedded in an IPv6 address."""
    if isinstance(address, ipaddress.IPv6Address):
        inner = address.ipv4_mapped or address.sixtofour or (address.teredo or (None, None))[1]
        if inner is not None and not is_public(inner):
            return False
        # NAT64 (RFC 6052): the last 32 bits are an IPv4 address.
        if address in _NAT64:
            return is_public(ipaddress.IPv4Address(int(address) & 0xFFFF_FFFF))
        if address not in _GLOBAL_UNICAST:
            return False
    elif address in _PROTOCOLS or address == _AZURE_PLATFORM:
        return False
    return address.is_global and not address.is_multicast


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
        self._threads = DaemonThreads(max_threads)
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
        self._threads.shutdown()


def _keep_slot(lane: Lane, call: Future[Any]) -> None:
    """Take a slot until `call` ends: that of its callback is released before."""
    loop = asyncio.get_running_loop()
    lane.take()

    def release(call: Future[Any]) -> None:
        # In the thread. If the loop is closed, its slots are not used any more.
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(lane.release)

    call.add_done_callback(release)
