"""`python settled.py PORT`: what stands for `sleep 1` in a block that is tested.

A reader's machine parks a request within a second; a busy one may not. This returns once what the
shell has started in the background has its connections to the port, their servers have read what
was sent, and all wait: nothing happens until the next command.

Only the standard library: it is run as a script, once for each `sleep`.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

PROC = Path("/proc")
_ESTABLISHED, _LISTEN = "01", "0A"
_PAUSE_S = 0.02


@dataclass(frozen=True, slots=True)
class Socket:
    """A line of /proc/net/tcp: ports, state, bytes that nobody has read yet, and inode."""

    local_port: int
    remote_port: int
    state: str
    unread: int
    inode: str


def sockets() -> Iterator[Socket]:
    """The TCP sockets of this machine."""
    for name in ("tcp", "tcp6"):
        for line in (PROC / "net" / name).read_text().splitlines()[1:]:
            _, local, remote, state, queues, *_, inode = line.split()[:10]
            yield Socket(_port(local), _port(remote), state, int(queues.split(":")[1], 16), inode)


def _port(address: str) -> int:
    return int(address.rpartition(":")[2], 16)


def processes() -> list[int]:
    """All processes of this machine."""
    return [int(entry.name) for entry in PROC.iterdir() if entry.name.isdecimal()]


def inodes(process: int) -> set[str]:
    """The sockets that a process holds; empty if it is not ours or has ended."""
    try:
        links = [os.readlink(entry) for entry in (PROC / str(process) / "fd").iterdir()]
    except OSError:
        return set()
    return {link[len("socket:[") : -1] for link in links if link.startswith("socket:[")}


def is_waiting(process: int) -> bool:
    """Return True iff each thread sleeps until something happens, or the process has ended."""
    try:
        tasks = [(task / "stat").read_text() for task in (PROC / str(process) / "task").iterdir()]
    except OSError:
        return not (PROC / str(process)).exists()
    # The state follows the name, which may have parentheses of its own.
    return all(task.rpartition(")")[2].split()[0] in "SZX" for task in tasks)


def children(parent: int) -> list[int]:
    """The running processes that `parent` has started, except this one."""
    tasks = (PROC / str(parent) / "task").glob("*/children")
    started = {int(child) for task in tasks for child in task.read_text().split()}
    return [child for child in started - {os.getpid()} if _state(child) not in "ZX"]


def _state(process: int) -> str:
    try:
        return (PROC / str(process) / "stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return "X"


def is_settled(port: int, clients: Iterable[int], servers: Iterable[int]) -> bool:
    """Return True iff all clients are connected to `port`, and nobody has anything to do."""
    # A client that sleeps has sent its request: only then is the server looked at.
    if not all(map(is_waiting, clients)):
        return False
    open_sockets = [socket for socket in sockets() if socket.state == _ESTABLISHED]
    connected = {socket.inode for socket in open_sockets if socket.remote_port == port}
    return (
        all(inodes(client) & connected for client in clients)
        and not any(socket.unread for socket in open_sockets if socket.local_port == port)
        and all(map(is_waiting, servers))
    )


def main(port: int) -> None:
    """Return once the background processes of the calling shell are settled."""
    if not PROC.exists():
        time.sleep(1)  # As a reader does: only Linux tells more.
        return
    listening = {
        socket.inode
        for socket in sockets()
        if socket.state == _LISTEN and socket.local_port == port
    }
    servers = [process for process in processes() if inodes(process) & listening]
    while True:
        clients = [child for child in children(os.getppid()) if child not in servers]
        if is_settled(port, clients, servers):
            # Twice: a thread that hands over to another may be seen asleep before the other wakes.
            time.sleep(_PAUSE_S)
            if is_settled(port, clients, servers):
                return
        time.sleep(_PAUSE_S)


if __name__ == "__main__":
    main(int(sys.argv[1]))
