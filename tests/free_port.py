"""Ports for servers that have to be given one."""

from __future__ import annotations

import secrets
import socket

# Below those that systems give to clients, and to servers that ask for any: other tests open
# thousands of connections at the same time.
_PORTS = range(20_000, 32_000)
_given: set[int] = set()


def free_port() -> int:
    """Return a port that stays free until it is used, also while its server is started again."""
    while True:
        port = secrets.choice(_PORTS)
        if port in _given:
            continue
        _given.add(port)
        try:
            with socket.create_server(("127.0.0.1", port)):
                return port
        except OSError:
            # Somebody listens there.
            continue
