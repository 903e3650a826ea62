"""The JSON of the dashboard's endpoints."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field

from purgatory.fastapi.http.authorization import Access, Action
from purgatory.fastapi.http.bodies.json_bodies import JsonBody
from purgatory.fastapi.http.schemas import RequestBody

MAX_TARGETS: Final = 500
# Characters: the id of a wait has its key, in Base64.
MAX_TARGET: Final = 2048

ActionName = Literal[
    "fire",
    "drop-key",
    "cancel-wait",
    "cancel-job",
    "run-job",
    "retry-job",
    "pause",
    "resume",
    "resume-all",
]


class ListedWait(BaseModel):
    """A wait that is pending."""

    id: str = Field(description="Names the wait in the actions of the dashboard.")
    worker: str = Field(description="The process: host and process id.", examples=["web-1:42"])
    key: str = Field(description="The key; the first that matches, of several.")
    keys: int = Field(description="How many keys it waits for.")
    kind: str = Field(
        description="`watch`: a request; `long-poll`: an endpoint behind the middleware; `park`: "
        "the application itself; others are the application's own.",
        examples=["watch"],
    )
    client: str | None = Field(
        description="The identity or the address of the client, as far as it is known.",
    )
    wait_id: str | None = Field(description="The Wait-Id that the client gave.")
    since_ms: int = Field(description="When it began: milliseconds since 1970, UTC.")
    deadline_ms: int = Field(description="When it expires: milliseconds since 1970, UTC.")
    age_ms: int = Field(description="How long it has waited.")
    remaining_ms: int = Field(description="How long it waits on, if nothing fires.")


class WaitsResponse(BaseModel):
    """A page of waits."""

    waits: list[ListedWait] = Field(description="In the order asked for.")
    next: str | None = Field(description="The `after` of the next page; null on the last one.")


class ActionsBody(RequestBody):
    """One action on one or more targets."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"action": "fire", "targets": ["order:42:paid"]}]}
    )

    action: ActionName = Field(
        description="`fire` and `drop-key` take keys, `cancel-wait` the ids of listed waits, "
        "`pause` and `resume` names of handlers, `-job` ids of jobs. `resume-all` ends a pause of "
        "all handlers; its target is only logged."
    )
    targets: list[Annotated[str, Field(min_length=1, max_length=MAX_TARGET)]] = Field(
        min_length=1, max_length=MAX_TARGETS, description="What to act on, each on its own."
    )
    value: Any = Field(None, description="The value to fire with; for `fire` only.")

    def accesses(self) -> Iterator[Access]:
        """Yield the access that it needs besides OPERATE."""
        for target in self.targets:
            if self.action == "fire":
                yield Access(Action.FIRE, target)
            elif self.action == "drop-key":
                yield Access(Action.OPERATE, target)
            elif self.action.endswith("-job"):
                yield Access(Action.DEFER, job=target)


class ActionResult(BaseModel):
    """The result of an action on one target."""

    target: str = Field(description="As in the request.")
    done: bool = Field(description="False if it was refused.")
    detail: str = Field(description="What happened, or why it was refused.")


class ActionsResponse(BaseModel):
    """The results."""

    results: list[ActionResult] = Field(description="In the order of the targets.")


def actions_json(max_value_bytes: int) -> JsonBody[ActionsBody]:
    """Return the body of actions: many short targets, or one large value."""
    return JsonBody(
        ActionsBody,
        max_bytes=max(1024 * 1024, 3 * max_value_bytes + 4096),
        max_value_bytes=max_value_bytes,
    )
