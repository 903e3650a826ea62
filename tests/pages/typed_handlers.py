"""What type checkers say of handlers and their payloads: wrong lines are ignored, and no others.

mypy checks this file with all others, and refuses an ignore that it does not need; so does pyright,
in test_snippet_types.py. Nobody imports it: some of its errors are raised, too.
"""

# pyright: reportUnnecessaryTypeIgnoreComment=true

from dataclasses import dataclass
from datetime import timedelta
from typing import TypedDict

from pydantic import BaseModel

from purgatory import Purgatory
from purgatory.jobs import Again, JobContext, JobHandle, RetryPolicy

purgatory = Purgatory()


@dataclass
class CancelOrder:
    order: int


class Charge(BaseModel):
    amount: int


class Note(TypedDict):
    text: str


@purgatory.handler("cancel-order", max_attempts=3, timeout=timedelta(seconds=30))
async def cancel_order(job: JobContext, payload: CancelOrder) -> None: ...


@purgatory.handler(retry=RetryPolicy(first_ms=500), final_errors=(ValueError,))
def charge(job: JobContext, payload: Charge) -> int:
    return payload.amount


@purgatory.handler
async def note(job: JobContext, payload: Note) -> None: ...


@purgatory.handler("sweep")
async def sweep(job: JobContext) -> Again:
    return job.again(delay=timedelta(hours=1))


@purgatory.handler
async def remind(job: JobContext, days: int = 7) -> None: ...


@purgatory.handler("x", max_atempts=3)  # type: ignore[call-overload, untyped-decorator]
async def misspelt(job: JobContext) -> None: ...


@purgatory.handler("y")  # type: ignore[arg-type]
async def of_nothing() -> None: ...


async def use(job: JobContext) -> tuple[JobHandle, int, Again]:
    handle: JobHandle = await cancel_order.defer(CancelOrder(42), delay=timedelta(minutes=15))
    await cancel_order.defer("42", delay=1)  # type: ignore[arg-type]
    await cancel_order.defer(delay=1)  # type: ignore[call-arg]
    await cancel_order.defer(CancelOrder(42), delay="soon")  # type: ignore[arg-type]
    await cancel_order.defer(CancelOrder(42), when=1)  # type: ignore[call-arg]
    await charge.defer(Charge(amount=1), delay=1, keys=["order:42"], on_fire="cancel")
    await charge.defer(CancelOrder(42), delay=1)  # type: ignore[arg-type]
    await note.defer({"text": "hello"}, delay=0)
    await note.defer({"txt": "hello"}, delay=0)  # type: ignore[typeddict-item, typeddict-unknown-key]
    await sweep.defer(delay=0)
    await sweep.defer(1, delay=0)  # type: ignore[arg-type]
    await remind.defer(delay=0)
    await remind.defer(3, delay=0)
    await remind.defer("3", delay=0)  # type: ignore[arg-type]
    await purgatory.defer("cancel-order", {"order": 42}, delay=1)
    amount: int = charge(job, Charge(amount=1))
    again: Again = await sweep(job)
    return handle, amount, again
