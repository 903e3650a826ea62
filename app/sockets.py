"""The sockets on which the service listens."""

from __future__ import annotations

import errno
import socket


class AddressError(Exception):
    """The service cannot listen on its address."""


def bind(host: str, port: int) -> list[socket.socket]:
    """Return sockets that are bound to each address of `host`; raise AddressError.

    They do not listen yet: until the service has started, connections are refused.
    """
    sockets: list[socket.socket] = []
    failure: OSError | None = None
    try:
        found = socket.getaddrinfo(
            host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
        for family, kind, protocol, _, address in dict.fromkeys(found):
            listener = socket.socket(family, kind, protocol)
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            try:
                listener.bind(address)
            except OSError as exc:
                listener.close()
                # localhost has an IPv6 address also where IPv6 is disabled.
                if exc.errno != errno.EADDRNOTAVAIL:
                    raise
                failure = exc
            else:
                sockets.append(listener)
        if failure is not None and not sockets:
            raise failure
    except OSError as exc:
        for listener in sockets:
            listener.close()
        way_out = ""
        if exc.errno == errno.EADDRINUSE:
            way_out = f"; stop what uses it, or choose another port: make run PORT={port + 1}"
        raise AddressError(
            f"cannot listen on {host!r}, port {port}: {exc.strerror}{way_out}"
        ) from exc
    return sockets
