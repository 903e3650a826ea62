"""What the pages take for granted: names that a reader has, defined before a fragment of code."""

# By page below docs/, then by the beginning of a block: what runs before that block.
PRELUDES: dict[str, dict[str, str]] = {
    "comparison.md": {
        "from purgatory import Purgatory": """
import asyncio


async def end() -> None:
    async with purgatory:
        waiting = asyncio.create_task(is_paid("42"))
        while not purgatory.parked:
            await asyncio.sleep(0)
        await pay("42")
        assert await waiting
        assert await is_paid("42")
""",
    },
    "how-to/long-poll.md": {
        "app.dependency_overrides": """
from fastapi import FastAPI

from purgatory.fastapi import LongPollKey
from purgatory.fastapi import get_park, get_purgatory

app = FastAPI()
park_that_returns_at_once = purgatory_of_this_test = None
""",
    },
    "how-to/test-your-code.md": {"@pytest.fixture": "import pytest"},
    "reference/handlers.md": {
        '@purgatory.handler("charge"': """
import asyncio


async def send_report():
    raise ConnectionError


async with purgatory:
    while not (await purgatory.jobs.list(concurrency_key="purgatory:periodic")).jobs:
        await asyncio.sleep(0.01)
    # One fails, and the next waits.
    failing = await daily_report.defer(delay=0, max_attempts=1)
    assert (await failing.wait(timeout=25)).state == "failed"
""",
    },
    "reference/callbacks.md": {
        "from purgatory.jobs.callbacks import CALLBACK": """
from purgatory import Purgatory
from purgatory.jobs import MemoryJobStore

purgatory = await Purgatory(jobs=MemoryJobStore()).__aenter__()


async def end():
    await purgatory.__aexit__(None, None, None)
""",
        "import time": """
secret, body = "at least 16 characters", b""
headers = {"Purgatory-Signature": "t=1,kid=00000000,v2=00", "Purgatory-Job-Id": "1"}
""",
    },
    "reference/servers.md": {
        "from collections.abc": """
from typing import Annotated

from fastapi import Depends, FastAPI

from purgatory import Purgatory


class Order:
    is_paid = False
    number = 42


app, purgatory = FastAPI(), Purgatory()
OrderDep = Annotated[Order, Depends(Order)]
""",
    },
    "security.md": {
        "from purgatory.fastapi import BearerTokens": """
import pathlib

from fastapi import FastAPI

from purgatory import Purgatory
from purgatory.fastapi import install

app, purgatory = FastAPI(), Purgatory()
pathlib.Path("tokens").write_text("sha256:" + 64 * "0" + " wait:order:*")
def Path(path: str) -> pathlib.Path: return pathlib.Path(pathlib.Path(path).name)
""",
        "async def authorize": """
from typing import Annotated, Any

from fastapi import Depends, HTTPException

from purgatory.fastapi import AccessesDep

CurrentUser = Annotated[Any, Depends(object)]
""",
    },
}

# What the type checkers take for granted beside these, by page: names that a page only mentions.
GIVEN: dict[str, str] = {
    "README.md": """
from typing import Any

from purgatory import Purgatory
from purgatory.jobs import JobContext

purgatory = Purgatory()
orders: dict[str, str] = {}


async def read_order(order: int) -> Any: ...
""",
    "reference/callbacks.md": """
from purgatory import Purgatory

purgatory = Purgatory()
""",
    "reference/handlers.md": """
from datetime import datetime


async def ask_to_pack(order: int) -> None: ...
async def cancel(order: int) -> None: ...
async def charge_card(order: dict[str, object]) -> None: ...
async def index(document: str) -> None: ...
async def refund(order: int) -> None: ...
async def remove_expired(before: datetime) -> None: ...
async def send(order: int) -> None: ...
async def send_report() -> None: ...
async def write_total(until: str) -> None: ...
""",
    "reference/jobs.md": """
from sqlalchemy.ext.asyncio import AsyncEngine

engine: AsyncEngine


async def read_is_paid(order: str) -> bool: return True
""",
}
