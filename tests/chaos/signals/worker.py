"""What is killed: a process with a purgatory that shares its signals, asked by lines of JSON."""

from __future__ import annotations

import asyncio
import json
import resource
import sys
from pathlib import Path
from typing import Any

from purgatory import CursorExpiredError, Limits, Purgatory, PurgatoryError
from purgatory.errors import SignalsConflictError
from purgatory.signals.model import Idempotency
from purgatory.signals.redis import RedisSignals

# So few that all are there soon: memory must not grow from then on.
MAX_SIGNALS = 4_000


async def answer(purgatory: Purgatory, request: dict[str, Any]) -> dict[str, Any]:
    """Return the reply to one request."""
    try:
        match request["what"]:
            case "fire":
                fired = await purgatory.fire(request["key"], request["value"])
                return {"seq": fired.seq}
            case "fire named":
                # As over HTTP, where the address and the body are the fingerprint.
                name = Idempotency(
                    owner="storm/",
                    name=request["name"],
                    fingerprint=f"{request['key']}={request['value']}",
                )
                items = [(request["key"], request["value"])]
                results = await purgatory.fire_shared(items, idempotency=name)
                assert isinstance(results, list)
                return {"seq": results[0].seq}
            case "begin":
                return {"cursor": purgatory.cursor(request["key"])}
            case "park":
                outcome = await purgatory.park(
                    request["key"], timeout=request["timeout"], cursor=request["cursor"]
                )
                return {
                    "status": outcome.status.value,
                    "value": outcome.value,
                    "cursor": outcome.cursor,
                }
            case _:
                counts = purgatory.statistics()
                return {
                    "missing": purgatory.missing,
                    "parked": counts.parked,
                    "signals": counts.signals.signals,
                    "bytes": resident_bytes(),
                }
    except SignalsConflictError as exc:
        return {"conflict": str(exc)}
    except CursorExpiredError as exc:
        return {"expired": exc.detail, "head": exc.head}
    except PurgatoryError as exc:
        return {"error": str(exc)}


def resident_bytes() -> int:
    """Return the memory that this process takes."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


async def serve(url: str, path: str) -> None:
    """Serve requests at a socket until it is killed."""
    tasks: set[asyncio.Task[None]] = set()
    signals = RedisSignals(url, shards=3, timeout=1.0)
    limits = Limits(max_signals=MAX_SIGNALS)
    async with Purgatory("worker", limits=limits, signals=signals) as purgatory:

        async def reply(line: bytes, writer: asyncio.StreamWriter) -> None:
            request = json.loads(line)
            found = await answer(purgatory, request)
            writer.write(json.dumps({**found, "id": request["id"]}).encode() + b"\n")

        async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            while line := await reader.readline():
                task = asyncio.create_task(reply(line, writer))
                tasks.add(task)
                task.add_done_callback(tasks.discard)

        async with await asyncio.start_unix_server(connected, path):
            await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(serve(*sys.argv[1:]))
