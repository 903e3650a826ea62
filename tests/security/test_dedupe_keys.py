"""A token that may only add jobs, against the jobs of somebody else."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from fastapi import FastAPI

from purgatory import Purgatory
from purgatory.fastapi import ALLOW_ANYONE, BearerTokens, TrustedHosts, install
from purgatory.jobs import JobContext, MemoryJobStore
from purgatory.jobs.callbacks import CALLBACK, Callback
from purgatory.jobs.model.job import owned_dedupe_key
from tests.acceptance.client import Connection, Reply
from tests.acceptance.thread_server import ThreadServer, serve
from tests.cases import cases

VICTIM = "token-of-the-victim-who-adds-jobs"
LOW = "token-of-an-attacker-who-adds-jobs"
SHOP, SHOP_AGAIN = "token-of-a-shop-and-its-orders", "new-token-of-the-shop-and-its-orders"
ALL = "token-of-an-operator-who-may-do-all"
TOKENS = f"""
{VICTIM} defer wait:paid fire:paid
{LOW} defer
{SHOP} defer:orders-*
{SHOP_AGAIN} defer:orders-* defer
{ALL} *
"""
JOB: dict[str, Any] = {
    "callback": {"url": "https://victim.example/hook", "headers": {"Authorization": "hunter2"}},
    "payload": "hunter2",
    "keys": ["paid"],
    "delay": 900.0,
    "dedupe_key": "order-42",
    "max_attempts": 7,
}
OTHER = {"callback": {"url": "https://attacker.example/"}, "delay": 900.0, "dedupe_key": "order-42"}


@pytest.fixture
def server() -> Iterator[ThreadServer]:
    app, purgatory = FastAPI(), Purgatory(jobs=MemoryJobStore())

    @purgatory.handler(CALLBACK, http=True)
    async def call(job: JobContext, callback: Callback) -> None:
        """Send nothing."""

    install(app, purgatory, authorize=BearerTokens.from_text(TOKENS))
    with serve(app, purgatory) as running:
        yield running


async def ask(server: ThreadServer, token: str, method: str, path: str, body: Any = None) -> Reply:
    async with await Connection.open(server.address) as connection:
        headers = {"Authorization": f"Bearer {token}"}
        return await connection.request(method, f"/purgatory{path}", body, headers)


async def add(server: ThreadServer, token: str, body: Any, **changes: Any) -> Reply:
    return await ask(server, token, "POST", "/jobs", {**body, **changes})


@pytest.mark.parametrize("on_conflict", ["error", "keep", "replace"])
async def test_a_dedupe_key_reveals_and_changes_nothing_of_others(
    server: ThreadServer, on_conflict: str
) -> None:
    """Equal keys of two tokens are two keys."""
    first = await add(server, VICTIM, JOB)
    assert (first.status, first.json()["dedupe_key"]) == (201, "order-42")
    other = await add(server, LOW, OTHER, on_conflict=on_conflict)
    assert other.status == 201 and other.json()["id"] != first.json()["id"]
    assert "hunter2" not in str(other.json()) and other.json()["dedupe_key"] == "order-42"
    batch = await ask(server, LOW, "POST", "/jobs:batch", [{**OTHER, "on_conflict": on_conflict}])
    assert "hunter2" not in str(batch.body) and first.json()["id"] not in str(batch.body)
    # The owner's key still does what it is for.
    assert (await add(server, VICTIM, JOB, on_conflict="keep")).json() == first.json()
    duplicate = await add(server, VICTIM, JOB)
    assert duplicate.status == 409 and "'order-42'" in duplicate.json()["detail"]
    replaced = await add(server, VICTIM, JOB, on_conflict="replace", delay=800.0)
    assert (replaced.status, replaced.json()["id"]) == (200, first.json()["id"])


async def test_tokens_of_one_prefix_share_its_dedupe_keys(server: ThreadServer) -> None:
    """Such as the old and the new token of one client; other dedupe keys are not shared."""
    body = {**OTHER, "dedupe_key": "orders-1"}
    first = await add(server, SHOP, body)
    again = await add(server, SHOP_AGAIN, body, on_conflict="keep")
    assert (first.status, again.status) == (201, 200)
    assert again.json()["id"] == first.json()["id"]
    assert (await add(server, SHOP, OTHER)).status == 403
    assert (await add(server, SHOP, {**OTHER, "dedupe_key": None})).status == 201
    assert (await add(server, SHOP_AGAIN, OTHER)).status == 201
    assert (await add(server, LOW, body)).status == 201


async def test_a_key_with_an_owner_has_room_for_it(server: ThreadServer) -> None:
    """The bound that OpenAPI says is the client's, whoever the client is."""
    for token in (LOW, ALL):
        added = await add(server, token, OTHER, dedupe_key="x" * 256)
        assert (added.status, added.json()["dedupe_key"]) == (201, "x" * 256)
        refused = await add(server, token, OTHER, dedupe_key="x" * 257)
        assert (refused.status, refused.json()["errors"][0]["pointer"]) == (422, "/dedupe_key")


async def test_a_fired_value_is_for_those_who_may_wait_for_its_key(server: ThreadServer) -> None:
    """Whoever knows the id of a job may read the rest."""
    added = await add(server, VICTIM, JOB)
    path = f"/jobs/{added.json()['id']}"
    fired = await ask(server, VICTIM, "POST", "/keys/paid", {"value": "hunter3"})
    assert fired.json()["jobs"] == 1
    for method in ("GET", "DELETE", "PATCH"):
        body = {"delay": 5.0} if method == "PATCH" else None
        assert "hunter3" not in str((await ask(server, LOW, method, path, body)).body)
    seen = (await ask(server, LOW, "GET", path)).json()
    assert (seen["fired_key"], seen["fired_value"]) == ("paid", None)
    assert (await ask(server, VICTIM, "GET", path)).json()["fired_value"] == "hunter3"


def _nobody() -> None:
    """Admit everyone, and name nobody."""


@cases("authorize", [ALLOW_ANYONE, TrustedHosts(), _nobody])
@cases("on_conflict", ["error", "keep", "replace"])
async def test_who_is_not_known_reaches_no_job_of_python(authorize: Any, on_conflict: str) -> None:
    """Least of all one of a handler that is closed to HTTP."""
    purgatory = Purgatory(jobs=MemoryJobStore())

    @purgatory.handler("charge")
    async def charge(job: JobContext, card: str) -> None:
        """Do nothing."""

    @purgatory.handler("note", http=True)
    async def note(job: JobContext) -> None:
        """Do nothing."""

    app = FastAPI()
    install(app, purgatory, authorize=authorize)
    body = {"handler": "note", "delay": 900.0, "dedupe_key": "order-42", "on_conflict": on_conflict}
    async with (
        purgatory,
        httpx.AsyncClient(
            transport=httpx.ASGITransport(app), base_url="http://localhost"
        ) as client,
    ):
        handle = await purgatory.defer("charge", "hunter2", delay=900, dedupe_key="order-42")
        added = await client.post("/purgatory/jobs", json=body)
        assert (added.status_code, added.json()["dedupe_key"]) == (201, "order-42")
        assert added.json()["id"] != handle.id and "hunter2" not in added.text
        assert (await handle.get()).handler == "charge"
        again = await client.post("/purgatory/jobs", json={**body, "on_conflict": "keep"})
        assert (again.status_code, again.json()["id"]) == (200, added.json()["id"])


async def test_a_token_for_everything_shares_the_dedupe_keys_of_python(
    server: ThreadServer,
) -> None:
    """But cannot spell the stored key of somebody else."""
    assert (await add(server, VICTIM, JOB)).status == 201
    for owner in ("", "alice"):
        refused = await add(server, ALL, OTHER, dedupe_key=owned_dedupe_key("order-42", owner))
        assert (refused.status, refused.json()["errors"][0]["pointer"]) == (422, "/dedupe_key")
    body = {**OTHER, "dedupe_key": "orders-1"}
    first = await add(server, ALL, body)
    again = await add(server, SHOP, body, on_conflict="keep")
    assert (first.status, again.status) == (201, 200)
    assert first.json()["id"] == again.json()["id"]
