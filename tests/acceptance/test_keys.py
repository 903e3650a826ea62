"""Firing, describing, dropping and listing keys."""

from __future__ import annotations

from tests.acceptance.client import Connection, Crowd, Reply
from tests.acceptance.thread_server import KINDS, ThreadServer, each_kind
from tests.bad_input.refusals import check_refusal

KEYS = "/purgatory/keys"


# What is tested here is above the server.
kind = each_kind(KINDS[0])


async def test_firing_returns_where_the_key_is(
    server: ThreadServer, connection: Connection
) -> None:
    """201 with a cursor just behind the signal, its number, and how many it woke."""
    async with Crowd(server.address, 3) as members:
        for member in members:
            member.send("GET", "/purgatory/watch/k?wait=50")
        await server.until_parked(3)
        answer = await connection.request("POST", f"{KEYS}/k", {"value": 1})
        assert answer.status == 201
        assert (answer.json()["seq"], answer.json()["completed"]) == (1, 3)
        assert set(answer.json()) == {"cursor", "seq", "completed"}
        assert {(await member.reply()).cursor for member in members} == {answer.cursor}
    second = await connection.request("POST", f"{KEYS}/k", {"value": 2})
    assert (second.json()["seq"], second.json()["completed"]) == (2, 0)
    watched = await connection.get(f"/purgatory/watch/k?wait=0&cursor={answer.cursor}")
    assert [signal["value"] for signal in watched.json()["signals"]] == [2]


async def test_firing_only_if_nothing_has_fired_since(connection: Connection) -> None:
    """If-Match with cursors: one of several is enough, a weak one matches nothing."""

    async def fire(*tags: str) -> Reply:
        return await connection.request("POST", f"{KEYS}/k", {}, {"If-Match": ", ".join(tags)})

    old = f'"{(await connection.request("POST", f"{KEYS}/k")).cursor}"'
    new = f'"{(await connection.request("POST", f"{KEYS}/k")).cursor}"'
    for tags in ([old], [f"W/{new}"], [old, f"W/{new}"]):
        refused = check_refusal(await fire(*tags), 412, "precondition-failed")
        assert f'"{refused["head"]}"' == new
    fired = await fire(old, new)
    assert fired.status == 201
    assert (await fire(f'"{fired.cursor}"')).status == 201
    assert (await fire("*")).status == 201
    check_refusal(await fire("k"), 422, "bad-parameter", "If-Match")
    check_refusal(await fire('"nonsense"'), 400, "bad-cursor")


async def test_firing_if_one_of_several_cursors_is_good(connection: Connection) -> None:
    """Whatever the others are, and in whichever order: nonsense, or of before a restart."""

    async def fire(*tags: str) -> Reply:
        return await connection.request("POST", f"{KEYS}/k", {}, {"If-Match": ", ".join(tags)})

    old = f'"{(await connection.request("POST", f"{KEYS}/k")).cursor}"'
    bad = ('"!"', '"000000000000-5"', '"~"', '"ffffffffffff-5"')
    for _ in range(3):
        new = f'"{(await connection.request("POST", f"{KEYS}/k")).cursor}"'
        assert (await fire(*bad, new)).status == 201
        check_refusal(await fire(*bad, old), 412, "precondition-failed")
    check_refusal(await fire(*bad), 400, "bad-cursor")


async def test_a_fire_needs_no_body(connection: Connection) -> None:
    """Without a body, or with an empty object, the value is null."""
    assert (await connection.request("POST", f"{KEYS}/k")).status == 201
    assert (await connection.request("POST", f"{KEYS}/k", {})).status == 201
    answer = await connection.get("/purgatory/watch/k?cursor=0")
    assert [signal["value"] for signal in answer.json()["signals"]] == [None, None]


async def test_a_batch_fires_in_order(connection: Connection) -> None:
    """One result for each signal, in the order of the request."""
    batch = [{"key": "a", "value": 1}, {"key": "b"}, {"key": "a", "value": 2}]
    answer = await connection.request("POST", KEYS, batch)
    assert answer.status == 201
    assert [result["seq"] for result in answer.json()["results"]] == [1, 1, 2]
    watched = await connection.get("/purgatory/watch/a?cursor=0")
    assert [signal["value"] for signal in watched.json()["signals"]] == [1, 2]


async def test_a_batch_fires_nothing_if_one_is_refused(
    server: ThreadServer, connection: Connection
) -> None:
    """All of them or none, and the refusal says which one it was."""
    batch = [{"key": "a"}, {"key": "b"}, {"key": "a\x00"}]
    answer = await connection.request("POST", KEYS, batch)
    assert answer.status == 422
    assert answer.json()["errors"][0]["pointer"] == "/2/key"
    assert server.purgatory.signals.statistics().signals == 0


async def test_a_batch_refuses_a_condition(server: ThreadServer, connection: Connection) -> None:
    """Not ignored: the client would take 201 for "nothing had fired since"."""
    cursor = (await connection.get(f"{KEYS}/a")).json()["cursor"]
    condition = {"If-Match": f'"{cursor}"'}
    answer = await connection.request("POST", KEYS, [{"key": "a"}], headers=condition)
    assert (answer.status, answer.json()["param"]) == (422, "If-Match")
    assert server.purgatory.signals.statistics().signals == 0


async def test_describing_a_key(server: ThreadServer, connection: Connection) -> None:
    """Its cursors, and how many wait on it; nothing is parked for it."""
    assert (await connection.get(f"{KEYS}/unheard-of")).json()["waiting"]["here"] == 0
    await connection.request("POST", f"{KEYS}/k", {"value": 1})
    async with Crowd(server.address, 2) as members:
        for member in members:
            member.send("GET", "/purgatory/watch/k?wait=50")
        await server.until_parked(2)
        document = (await connection.get(f"{KEYS}/k")).json()
        assert document["waiting"] == {"here": 2, "everywhere": 2}
        assert document["key"] == "k"
    for cursor, expected in ((document["cursor"], []), (document["earliest"], [1])):
        answer = await connection.get(f"/purgatory/watch/k?wait=0&cursor={cursor}")
        assert [signal["value"] for signal in answer.json()["signals"]] == expected


async def test_listing_what_is_watched(server: ThreadServer, connection: Connection) -> None:
    """In order, those that begin with a prefix, up to a limit."""
    assert (await connection.get(KEYS)).json() == {"keys": [], "more": False}
    async with Crowd(server.address, 4) as members:
        for member, key in zip(members, ("b/2", "a", "b/1", "b/1"), strict=True):
            member.send("GET", f"/purgatory/watch/{key}?wait=50")
        await server.until_parked(4)
        every = (await connection.get(KEYS)).json()
        assert every["keys"] == [
            {"key": "a", "waiting": 1},
            {"key": "b/1", "waiting": 2},
            {"key": "b/2", "waiting": 1},
        ]
        some = (await connection.get(f"{KEYS}?prefix=b%2F&limit=1")).json()
        assert some == {"keys": [{"key": "b/1", "waiting": 2}], "more": True}
        none = (await connection.get(f"{KEYS}?prefix=c")).json()
        assert none == {"keys": [], "more": False}
        statistics = (await connection.get("/purgatory/statistics")).json()
        assert (statistics["parked"], statistics["keys"], statistics["watched"]) == (4, 3, 4)
