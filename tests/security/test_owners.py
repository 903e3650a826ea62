"""Whose a job is that was added over HTTP."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import httpx
from fastapi import FastAPI

from purgatory import Purgatory
from purgatory.fastapi import ALLOW_ANYONE, BearerTokens, install
from purgatory.jobs import JobContext, MemoryJobStore
from tests.cases import cases

TOKENS = """
token-of-the-victim-who-adds-jobs defer
token-of-an-attacker-who-adds-jobs defer
"""
BODY = {"handler": "note", "delay": 900.0}


@cases("path", ["/jobs", "/jobs:batch"])
@cases("is_anonymous", [True, False])
async def test_a_job_is_of_the_token_that_added_it(path: str, is_anonymous: bool) -> None:
    """By a hash, which no response shows; of nobody if the client is unknown, as in Python."""
    purgatory, app = Purgatory(jobs=MemoryJobStore()), FastAPI()

    @purgatory.handler("note", http=True)
    async def note(job: JobContext) -> None:
        """Do nothing."""

    authorize: Any = ALLOW_ANYONE if is_anonymous else BearerTokens.from_text(TOKENS)
    install(app, purgatory, authorize=authorize)
    transport = httpx.ASGITransport(app)
    async with purgatory, httpx.AsyncClient(transport=transport, base_url="http://localhost") as c:
        for who in ("victim", "victim", "attacker"):
            token = next(line.split()[0] for line in TOKENS.split("\n") if who in line)
            kind = "application/json" if path == "/jobs" else "application/x-ndjson"
            headers = {"Authorization": f"Bearer {token}", "Content-Type": kind}
            added = await c.post(f"/purgatory{path}", content=json.dumps(BODY), headers=headers)
            assert added.is_success and "owner" not in added.text
        await purgatory.defer("note", delay=900)
        counts = Counter(job.owner for job in (await purgatory.jobs.list()).jobs)
    assert counts.pop(None) == (4 if is_anonymous else 1)
    assert sorted(counts.values()) == ([] if is_anonymous else [1, 2])
