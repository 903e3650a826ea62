"""The name of this process among those that share signals."""

from __future__ import annotations

import os
import socket
from secrets import token_hex


class WorkerName:
    """The worker of one router: its name for people, and a token that no other worker has."""

    __slots__ = ("_pid", "_token")

    def __init__(self) -> None:
        """Take the name on first use: a server may fork after the application was made."""
        self._pid = 0
        self._token = ""

    @property
    def token(self) -> str:
        """Twelve hexadecimal digits."""
        pid = os.getpid()
        if pid != self._pid:
            self._pid, self._token = pid, token_hex(6)
        return self._token

    @property
    def name(self) -> str:
        """The host and the process id."""
        return f"{socket.gethostname()}:{os.getpid()}"
