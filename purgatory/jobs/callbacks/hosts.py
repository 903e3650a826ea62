"""Sets of hosts, each at one port or at the ports of http and https."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final
from urllib.parse import urlsplit

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
