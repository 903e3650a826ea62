"""Protection against callbacks to private addresses (SSRF)."""

from __future__ import annotations

import ipaddress

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
