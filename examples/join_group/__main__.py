"""A group forms, shrinks, grows and drains, over HTTP: `python -m examples.join_group`."""

from __future__ import annotations

import asyncio
import socket

import httpx
import uvicorn

from examples.join_group.app import create_app
from examples.join_group.client import Generation, Members
from examples.join_group.settings import Settings

SETTINGS = Settings(initial_rebalance_delay_ms=800, min_session_timeout_ms=1_000, lease_ms=500)

FAY = {"client_id": "fay", "protocols": {"roundrobin": ""}}


async def demonstrate(session_timeout: float = 3.0, settings: Settings = SETTINGS) -> None:
    """Print what each member has, in some seconds."""
    app = create_app(settings)
    listening = socket.create_server(("127.0.0.1", 0))
    url = f"http://127.0.0.1:{listening.getsockname()[1]}"
    # Longer than a client may pause between heartbeats.
    config = uvicorn.Config(app, access_log=False, log_level="warning", timeout_keep_alive=75)
    server = uvicorn.Server(config)
    serving = asyncio.create_task(server.serve([listening]))
    beat = session_timeout / 8
    options = {"session_timeout": session_timeout, "heartbeat_interval": beat}
    print(f"The members of {url}/groups/orders share 12 partitions; * marks the leader.")
    try:
        async with httpx.AsyncClient() as http:
            members = Members(http, group_id="orders", workers=[url], **options)
            members.start("ada", "bob", "cho", "dee")
            number = show("four join, and get a response together", await members.settled())
            await members.stop("bob", leave=True)
            number = show("bob leaves: heartbeats say so", await members.settled(after=number))
            await members.stop("cho")
            number = show("cho crashes: her session expires", await members.settled(after=number))
            members.start("eve")
            number = show("eve joins, and all join again", await members.settled(after=number))
            joining = asyncio.create_task(
                http.post(f"{url}/groups/orders/join", json=FAY, timeout=60)
            )
            await asyncio.sleep(beat)
            app.state.purgatory.begin_drain()
            response = await joining
            retry = f"{response.status_code}, Retry-After {response.headers['retry-after']}"
            print(f"fay joins, the server stops: {retry}")
            await members.stop("ada", "dee", "eve")
    finally:
        server.should_exit = True
        await serving


def show(event: str, generations: dict[str, Generation]) -> int:
    """Print an event and the generation that it has led to, and return its number."""
    (number,) = {each.number for each in generations.values()}
    shares = [
        f"{name}{'*' if each.is_leader else ''} {each.partitions}"
        for name, each in generations.items()
    ]
    print(f"{event:<39} generation {number}: {', '.join(shares)}", flush=True)
    return number


if __name__ == "__main__":
    asyncio.run(demonstrate())
