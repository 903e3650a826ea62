"""Access for all clients that use a trusted name: protection against DNS rebinding."""

from __future__ import annotations

import re
from collections.abc import Iterable
from ipaddress import IPv4Address, IPv6Address

from purgatory.fastapi.http.authorization import UNRESTRICTED, Permit
from purgatory.fastapi.http.problems import Problem
from purgatory.fastapi.http.raw_request import RawRequest

MAX_REMEMBERED = 100
# What urlsplit would take for more than a name and a port, and what no name has.
_NAME = re.compile(r"[^\x00-\x20\x7f\"#%&'()*+,/:;<=>?@\[\\\]^`{|}]+")
# RFC 9110, 7.2, without percent-encoding.
_HOST = re.compile(rf"(?:({_NAME.pattern})|\[([0-9A-Fa-f:.]+)\])(?::[0-9]*)?")


class TrustedHosts:
    """Allows everything if the Host of the request is trusted. Pass it as `authorize=`.

    A web page can let its own name point to an address of its reader's network, and then send any
    request there as to its own origin, and read the responses. The name in Host gives it away.
    Addresses, and `localhost` with all names below it, are always trusted: no page has these.
    """

    def __init__(self, hosts: Iterable[str] = ()) -> None:
        """Trust also `hosts`: names without a port; `*` is all names.

        Raises ValueError for what is not a name, and TypeError for a string of names.
        """
        # A string is an iterable of strings, and never what was meant.
        if isinstance(hosts, str):
            raise TypeError(f"hosts is the string {hosts!r}: give a list, [{hosts!r}]")
        self._hosts = frozenset(map(_name, hosts))
        # Values of Host that were trusted before: few, and looked up for each request.
        self._trusted: set[bytes] = set()

    def __call__(self, raw: RawRequest) -> Permit:
        """Return the permit that allows everything; raise Problem 421 for another host."""
        found = None
        for name, value in raw.headers:
            if name == b"host":
                found = value if found is None else b""
        if found in self._trusted:
            return UNRESTRICTED
        header = (found or b"").strip(b" \t").decode("latin-1")
        if "*" in self._hosts or self._is_trusted(header):
            if found is not None and len(self._trusted) < MAX_REMEMBERED:
                self._trusted.add(found)
            return UNRESTRICTED
        raise Problem(
            "untrusted-host",
            f"Host is {header[:64]!r}: only addresses, localhost and the names in "
            "TrustedHosts([...]), of the service in PURGATORY_ALLOWED_HOSTS, are accepted, which "
            "keeps pages of other web sites out",
            param="Host",
            allowed="an address, localhost, or a name that the operators trust",
        )

    def _is_trusted(self, header: str) -> bool:
        match = _HOST.fullmatch(header)
        if match is None:
            return False
        name, address = match.groups("")
        host = name.lower().removesuffix(".")
        if host == "localhost" or host.endswith(".localhost") or host in self._hosts:
            return True
        try:
            IPv6Address(address) if address else IPv4Address(host)
        except ValueError:
            return False
        return True


def _name(host: str) -> str:
    name = host.lower().removesuffix(".")
    if name != "*" and _NAME.fullmatch(name) is None:
        raise ValueError(
            f"{host!r} is not the name of a host: give it without a port, scheme or wildcard, such "
            "as 'shop.internal', or '*' for all names"
        )
    return name
