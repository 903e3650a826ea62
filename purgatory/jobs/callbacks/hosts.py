"""Sets of hosts, each at one port or at the ports of http and https."""

from __future__ import annotations

from collections.abc import Iterable
from urllib.parse import urlsplit

_DEFAULT_PORTS = (80, 443)


class Hosts:
    """Hosts by name or address: `name` at ports 80 and 443, `name:port` at that port only."""

    def __init__(self, hosts: Iterable[str]) -> None:
        """Parse `hosts`; an IPv6 address is in brackets.

        Raises TypeError for a string of hosts, and ValueError for what is not a host.
        """
        self._allowed = {
            (host, wanted)
            for host, port in map(parsed_host, listed_hosts(hosts))
            for wanted in ((port,) if port is not None else _DEFAULT_PORTS)
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
