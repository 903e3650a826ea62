"""A client of the HTTP interface, sync and async, that loses nothing.

    async with AsyncClient("http://127.0.0.1:8000") as client:
        async for signal in client.follow("order:42"):
            ...

What both do is in `flows`, which do no I/O: a flow yields commands, and `AsyncClient` and `Client`
carry them out.
"""

try:
    import httpx as _httpx  # noqa: F401 - imported to say, once, what is missing
except ImportError as exc:
    raise ImportError(
        "purgatory.client needs httpx: pip install 'fastapi-purgatory[client]'"
    ) from exc

from purgatory.client.async_client import AsyncClient, AsyncJobHandle
from purgatory.client.sync_client import Client, JobHandle
from purgatory.client.values import (
    Fired,
    Job,
    RefusedError,
    ServerUnavailableError,
    Signal,
    WaitResult,
)
from purgatory.errors import BadCursorError, CursorExpiredError, PurgatoryError
from purgatory.job_errors import JobNotFoundError

__all__ = [
    "AsyncClient",
    "AsyncJobHandle",
    "BadCursorError",
    "Client",
    "CursorExpiredError",
    "Fired",
    "Job",
    "JobHandle",
    "JobNotFoundError",
    "PurgatoryError",
    "RefusedError",
    "ServerUnavailableError",
    "Signal",
    "WaitResult",
]
