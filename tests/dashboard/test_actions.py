"""The actions of the dashboard: who may, what becomes of each target, and the audit log."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, get_args

import httpx
import pytest
from fastapi import FastAPI

from purgatory import Purgatory
from purgatory.event_loop.inspection import Inspection
from purgatory.fastapi import AccessesDep, BearerTokens, install
from purgatory.fastapi.dashboard.routes import SLICE, ActionName
from purgatory.jobs import JobState, MemoryJobStore
from purgatory.operations.delayed_operation import DelayedOperation
from purgatory.outcome import Status
from tests.dashboard.test_snapshots import park
from tests.turns import Turns

pytestmark = pytest.mark.anyio

OBSERVER, OPERATOR = "token-of-an-observer", "token-of-an-operator"
ADMIN, FIRER = "token-of-all-rights", "token-of-one-who-fires"
TOKENS = BearerTokens.from_text(
    f"{OBSERVER} observe defer; {OPERATOR} operate; {ADMIN} operate fire:* defer; {FIRER} fire:*"
)


@asynccontextmanager
async def opened(
    authorize: Any = TOKENS, endpoints: Any = None
) -> AsyncIterator[tuple[httpx.AsyncClient, Purgatory]]:
    app, purgatory = FastAPI(), Purgatory(jobs=MemoryJobStore())
    purgatory.handled_elsewhere(["note"])
    install(app, purgatory, authorize=authorize, endpoints=endpoints)
    transport = httpx.ASGITransport(app)
    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(transport=transport, base_url="http://test") as http,
    ):
        yield http, purgatory


async def act(http: httpx.AsyncClient, token: str, action: str, *targets: str, **more: Any) -> Any:
    return await http.post(
        "/purgatory/dashboard/actions",
        json={"action": action, "targets": targets, **more},
        headers={"Authorization": f"Bearer {token}"},
    )


async def test_keys_are_fired_and_dropped() -> None:
    """With a value, as at their own endpoints."""
    async with opened() as (http, purgatory):
        fired, dropped = park(purgatory, "a"), park(purgatory, "b")
        response = await act(http, ADMIN, "fire", "a", value={"by": "hand"})
        assert response.status_code == 200
        assert response.json()["results"] == [
            {"target": "a", "done": True, "detail": "ended 1 waits of this worker"}
        ]
        assert (await act(http, OPERATOR, "drop-key", "b")).json()["results"][0]["done"]
        assert (fired.status, dropped.status) == (Status.FIRED, Status.CANCELLED)
        [signal] = purgatory.signals.read("a", 0, 10)
        assert purgatory.signals.value(signal) == {"by": "hand"}


async def test_waits_are_cancelled_by_their_ids_in_the_list() -> None:
    """All that were chosen; one that has ended meanwhile is refused, and the others are not."""
    async with opened() as (http, purgatory):
        operations = [park(purgatory, "a") for _ in range(5)]
        headers = {"Authorization": f"Bearer {OBSERVER}"}
        page = (await http.get("/purgatory/waits", headers=headers)).json()
        ids = [wait["id"] for wait in page["waits"]]
        operations[2].cancel()
        results = (await act(http, OPERATOR, "cancel-wait", *ids)).json()["results"]
        assert [result["target"] for result in results] == ids
        assert sum(result["done"] for result in results) == 4
        assert purgatory.parked == 0


async def test_jobs_are_cancelled_and_run() -> None:
    """In bulk; one that was decided says what it is."""
    async with opened() as (http, purgatory):
        jobs = [(await purgatory.defer("note", delay=900)).id for _ in range(4)]
        assert all(
            result["done"]
            for result in (await act(http, ADMIN, "cancel-job", *jobs[:3])).json()["results"]
        )
        again = (await act(http, ADMIN, "run-job", jobs[0], jobs[3], "unknown")).json()["results"]
        assert [result["done"] for result in again] == [False, True, False]
        counts = await purgatory.jobs.counts()
        assert (counts.cancelled, counts.waiting) == (3, 1)
        assert (await purgatory.job(jobs[0]).get()).state is JobState.CANCELLED


async def test_handlers_are_paused_and_resumed_and_failed_jobs_tried_again() -> None:
    """As at their own endpoints; a job that has not failed is refused."""
    async with opened() as (http, purgatory):
        job = await purgatory.defer("note", delay=900)
        [refused] = (await act(http, ADMIN, "retry-job", job.id)).json()["results"]
        assert not refused["done"] and "waiting" in refused["detail"]
        assert (await act(http, OPERATOR, "pause", "note")).json()["results"][0]["done"]
        assert "note" in str(await purgatory.jobs.paused())
        [ran] = (await act(http, ADMIN, "run-job", job.id)).json()["results"]
        assert ran["done"] and "note is paused" in ran["detail"]
        assert (await act(http, OPERATOR, "resume", "note")).json()["results"][0]["done"]
        assert "note" not in str(await purgatory.jobs.paused())
        await purgatory.jobs.pause()
        [resumed] = (await act(http, OPERATOR, "resume-all", "all handlers")).json()["results"]
        assert resumed["done"] and not (await purgatory.jobs.paused()).is_all


async def test_an_action_needs_operate_and_its_own_permission() -> None:
    """Hidden in the page, and refused here whatever the page shows."""
    cases = [
        (OBSERVER, "fire"),
        (OBSERVER, "cancel-job"),
        (OBSERVER, "cancel-wait"),
        (OBSERVER, "drop-key"),
        (OPERATOR, "fire"),
        (OPERATOR, "cancel-job"),
        (OPERATOR, "run-job"),
        (FIRER, "fire"),
        (FIRER, "drop-key"),
        ("an-unknown-token-here", "fire"),
    ]
    async with opened() as (http, purgatory):
        operation = park(purgatory, "a")
        for token, action in cases:
            response = await act(http, token, action, "a")
            expected = 401 if "unknown" in token else 403
            assert response.status_code == expected, (token, action)
            assert operation.status is Status.PENDING and purgatory.signals.head() == 0


async def test_every_action_is_in_the_audit_log(caplog: pytest.LogCaptureFixture) -> None:
    """With who did it, what, to what, and whether it was done; one line, whatever the target is."""
    async with opened() as (http, purgatory):
        park(purgatory, "a")
        with caplog.at_level(logging.INFO, "purgatory.audit"):
            await act(http, ADMIN, "fire", "a", "bad\nkey")
            await act(http, OBSERVER, "fire", "a")
    records = [each for each in caplog.records if each.name == "purgatory.audit"]
    first, second = (record.getMessage() for record in records)
    identity = getattr(records[0], "identity")  # noqa: B009 - of `extra`
    assert first == f"{identity}: fire a: ended 1 waits of this worker"
    assert second.startswith(f"{identity}: fire bad\\nkey: ") and "\n" not in second
    assert [getattr(record, "is_done") for record in records] == [True, False]  # noqa: B009 - as above
    assert ADMIN not in first and identity.startswith("token-")


async def test_a_dependency_is_told_what_is_about_to_be_done() -> None:
    """OPERATE, and in addition the action on each target; reading is marked."""
    seen: list[Any] = []

    async def authorize(accesses: AccessesDep) -> str:
        seen.extend(accesses)
        return "ada"

    async with opened(authorize) as (http, _):
        await act(http, "", "fire", "a", "b")
        assert [(access.action, access.key) for access in seen] == [
            ("operate", None),
            ("fire", "a"),
            ("fire", "b"),
        ]
        assert not any(access.is_read_only for access in seen)
        seen.clear()
        await http.get("/purgatory/waits")
        assert [access.is_read_only for access in seen] == [True]


async def test_waits_on_a_crowded_key_are_ended_together(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The waits on a key are looked at once for all targets, in slices: others have their turn."""
    looks = []
    watching = Inspection.watching

    def count_look(inspection: Inspection, key: str) -> list[DelayedOperation]:
        looks.append(key)
        return watching(inspection, key)

    async with opened() as (http, purgatory):
        for _ in range(20 * SLICE):
            park(purgatory, "a")
        headers = {"Authorization": f"Bearer {OBSERVER}"}
        page = (await http.get("/purgatory/waits?limit=250", headers=headers)).json()
        ids = [wait["id"] for wait in page["waits"]]
        monkeypatch.setattr(Inspection, "watching", count_look)
        async with Turns() as turns:
            response = await act(http, OPERATOR, "cancel-wait", *ids, *ids)
        done = [result["done"] for result in response.json()["results"]]
        assert done == [True] * 250 + [False] * 250
        assert purgatory.parked == 20 * SLICE - 250
        assert looks == ["a"] and turns.count >= 20


async def test_actions_of_groups_that_are_not_offered_are_refused() -> None:
    """What `install(endpoints=)` leaves out does not come back through the dashboard."""
    async with opened(endpoints={"watch", "dashboard"}) as (http, purgatory):
        operation = park(purgatory, "a")
        for action in get_args(ActionName):
            response = await act(http, ADMIN, action, "a")
            if action == "cancel-wait":
                assert not response.json()["results"][0]["done"]
            else:
                assert response.status_code == 403, action
                assert "install(endpoints=...)" in response.json()["detail"], action
            assert operation.status is Status.PENDING, action
            assert not (await purgatory.jobs.paused()).handlers, action
