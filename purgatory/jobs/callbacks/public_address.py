"""Protection against callbacks to private addresses (SSRF)."""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Callable
from functools import partial
from typing import Any

from purgatory.jobs.handlers.threads import JobThreads
from purgatory.jobs.model.errors import RetryJobError

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
LookUp = Callable[..., list[Any]]
"""`socket.getaddrinfo`, or a function that is called like it."""

# All unicast addresses ever assigned. Site-local and IPv4-compatible addresses are outside, though
# `is_global` accepts them.
_GLOBAL_UNICAST = ipaddress.IPv6Network("2000::/3")
_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")
# For protocols, not for hosts (RFC 6890); some versions of Python know only parts of it.
_PROTOCOLS = ipaddress.IPv4Network("192.0.0.0/24")
# Azure's platform: global by number, but answered by the host of a virtual machine, with its keys.
_AZURE_PLATFORM = ipaddress.IPv4Address("168.63.129.16")


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


async def resolve(
    host: str, port: int, *, allow_private: bool, look_up: LookUp, threads: JobThreads
) -> Address:
    """Return the address at which to call `host`, looked up in `threads`.

    The caller connects to this address and to no other, which makes DNS rebinding ineffective.
    Raises RetryJobError for a host that has any private address, and if the look-up fails;
    ThreadLeftError if cancelled during the look-up.
    """
    try:
        # Not by the event loop, which has a few threads for everything in the process, and waits
        # for them when it ends: a silent name server blocks a thread for half a minute.
        found = await threads.run(partial(look_up, host, port, type=socket.SOCK_STREAM))
    except (OSError, UnicodeError) as exc:
        raise RetryJobError(f"host {host!r} cannot be looked up ({exc})") from exc
    addresses = [ipaddress.ip_address(str(entry[4][0]).partition("%")[0]) for entry in found]
    if not addresses:
        raise RetryJobError(f"host {host!r} has no address")
    private = [address for address in addresses if not is_public(address)]
    if private and not allow_private:
        # Retried: a service that was started without the setting must not fail its jobs for good.
        # Without the address, which everyone who may read the job would learn.
        raise RetryJobError(
            f"host {host!r} is not on the public internet: operators can allow it with "
            "PURGATORY_CALLBACK_ALLOWED_HOSTS, or all such callbacks with "
            "PURGATORY_CALLBACK_ALLOW_PRIVATE; in Python with Webhook(allowed_hosts=) or "
            "allow_private="
        )
    return addresses[0]
