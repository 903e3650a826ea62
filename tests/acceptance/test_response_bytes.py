"""A response has a bounded number of bytes, over real connections, on each kind of server."""

from __future__ import annotations

from typing import Any

from purgatory.fastapi import WaitSettings
from tests.acceptance.client import Connection
from tests.acceptance.thread_server import ServerKind, serve_endpoints

VALUES = [f"{number}" * 1000 for number in range(10, 60)]


async def test_a_long_history_comes_in_pages(kind: ServerKind) -> None:
    """Each of bounded size, with `more` and a cursor; a value that is larger comes alone."""
    with serve_endpoints(kind, settings=WaitSettings(max_response_bytes=10_000)) as server:
        for value in [*VALUES, "x" * 50_000, "end"]:
            await server.fire("k", value=value)
        async with await Connection.open(server.address) as connection:

            async def page(method: str, path: str, body: Any = None) -> Any:
                reply = await connection.request(method, f"/purgatory{path}", body)
                assert reply.status == 200
                assert len(reply.body) < 10_000 + 300 or len(reply.body) < 50_300
                return reply.json()

            read, cursor, sizes = [], "0", []
            while True:
                found = await page("GET", f"/watch/k?limit=1000&wait=0&cursor={cursor}")
                read += [signal["value"] for signal in found["signals"]]
                sizes.append(len(found["signals"]))
                cursor = found["cursor"]
                if not found["more"]:
                    break
            assert read == [*VALUES, "x" * 50_000, "end"]
            assert sizes == [4] * 12 + [2, 1, 1]
            await server.fire("other", value=1)
            keys = {"k": "0", "other": "0"}
            found = await page("POST", "/watch", {"keys": keys, "wait": 0, "until": "all"})
            assert found["reason"] == "fired"
            assert found["keys"]["other"] == {
                "signals": [],
                "cursor": found["cursors"]["other"],
                "more": True,
            }
            keys = {"other": found["cursors"]["other"], "k": found["cursors"]["k"]}
            found = await page("POST", "/watch", {"keys": keys, "wait": 0})
            assert [signal["value"] for signal in found["keys"]["other"]["signals"]] == [1]
            assert found["keys"]["k"]["signals"][0]["value"] == VALUES[4]
