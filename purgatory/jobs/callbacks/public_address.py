"""Which addresses a callback may go to."""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from functools import partial

from purgatory.jobs.handlers.threads import JobThreads, ThreadLeftError
from purgatory.jobs.model.errors import RetryJobError

Address = ipaddress.IPv4Address | ipaddress.IPv6Address

# All that was ever given to anybody; site-local addresses, and IPv4 addresses as the last 32 bits
# of a row of zeros, lie outside, though `is_global` says nothing against them.
_GLOBAL_UNICAST = ipaddress.IPv6Network("2000::/3")
_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")
# For protocols, not for hosts (RFC 6890); some versions of Python know parts of it only.
_PROTOCOLS = ipaddress.IPv4Network("192.0.0.0/24")


def is_public(address: Address) -> bool:
    """Return True iff `address` is one of the internet's, however it is written."""
    if isinstance(address, ipaddress.IPv6Address):
        inner = address.ipv4_mapped or address.sixtofour or (address.teredo or (None, None))[1]
        if inner is not None and not is_public(inner):
            return False
        # NAT64 (RFC 6052): the last 32 bits are an IPv4 address.
        if address in _NAT64:
            return is_public(ipaddress.IPv4Address(int(address) & 0xFFFF_FFFF))
        if address not in _GLOBAL_UNICAST:
            return False
    elif address in _PROTOCOLS:
        return False
    return address.is_global and not address.is_multicast


async def resolve(host: str, port: int, *, allow_private: bool, threads: JobThreads) -> Address:
    """Return the one address that `host` is to be called at, having looked it up in `threads`.

    The caller connects to this address and to no other, so that a name that means something else
    the next time it is asked for (DNS rebinding) changes nothing. Raises RetryJobError for a host
    that has any private address, and where it cannot be looked up now.
    """
    try:
        # Not by the event loop, which has a handful of threads for everything in the process, and
        # waits for them when it ends: a silent name server holds one for half a minute.
        look_up = partial(socket.getaddrinfo, host, port, type=socket.SOCK_STREAM)
        found = await threads.run(look_up)
    except (OSError, UnicodeError) as exc:
        raise RetryJobError(f"host {host!r} cannot be looked up ({exc})") from exc
    except ThreadLeftError as exc:
        # Nothing comes of a look-up but its answer: it may be left behind.
        raise asyncio.CancelledError from exc
    addresses = [ipaddress.ip_address(str(entry[4][0]).partition("%")[0]) for entry in found]
    if not addresses:
        raise RetryJobError(f"host {host!r} has no address")
    private = [address for address in addresses if not is_public(address)]
    if private and not allow_private:
        # To be tried again: a service that was started without the setting must not end its jobs.
        raise RetryJobError(
            f"host {host!r} is at {private[0]}, which is not on the public internet: operators can "
            "allow such callbacks with Webhook(allow_private=) or allowed_hosts=, and in the "
            "service with PURGATORY_CALLBACK_ALLOW_PRIVATE"
        )
    return addresses[0]
