"""The actions of operators: one on many targets, with a line of each in the audit log."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Annotated, Any, Final, Literal, get_args

from pydantic import BaseModel, ConfigDict, Field

from purgatory.errors import PurgatoryError
from purgatory.fastapi.dashboard.wait_list import WaitList
from purgatory.fastapi.http.errors import problem_of_error
from purgatory.fastapi.http.json_bodies import ESCAPED, JsonBody, RequestBody
from purgatory.fastapi.http.requests import Access, Action, RawRequest
from purgatory.fastapi.http.responses import Problem, release_frames
from purgatory.log_text import escaped
from purgatory.purgatory import Purgatory
from purgatory.turn_budget import TurnBudget

audit = logging.getLogger("purgatory.audit")

# Characters: the id of a wait has its key.
MAX_TARGET: Final = 512
# Bytes of all targets: of as many ids of waits on the longest keys in ASCII.
TARGETS_ROOM: Final = 144 * 1024
# Characters of a target in a line of the log.
_MAX_LOGGED: Final = 300

_OnKeys = Literal["fire", "drop-key"]
_OnJobs = Literal["cancel-job", "run-job", "retry-job", "pause", "resume", "resume-all"]
ActionName = Literal["cancel-wait", _OnKeys, _OnJobs]


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
        min_length=1, max_length=500, description="What to act on, each on its own."
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
    """Return the body of actions: many short targets, and a value."""
    return JsonBody(ActionsBody, max_bytes=ESCAPED * (max_value_bytes + TARGETS_ROOM))


class Actions:
    """Performs actions of operators, on one target after the other, and logs each.

    Every action needs OPERATE, and in addition the permission that the same action needs at its
    own endpoint: FIRE on the key, DEFER for jobs. Actions of a group of endpoints that the
    application does not offer are refused.
    """

    def __init__(self, purgatory: Purgatory, waits: WaitList, groups: frozenset[str]) -> None:
        """Act on `purgatory` and its `waits`, where the endpoints of `groups` are offered."""
        self._purgatory = purgatory
        self._waits = waits
        self._groups = groups

    async def dashboard_actions(self, raw: RawRequest, body: ActionsBody) -> ActionsResponse:
        """Act on keys, waits or jobs.

        Do one action on up to 500 targets. Each is logged by `purgatory.audit`.
        """
        # A refusal of one target does not keep the action from the others.
        for access in body.accesses():
            raw.permit.check(access)
        group = "keys" if body.action in get_args(_OnKeys) else "jobs"
        if body.action != "cancel-wait" and group not in self._groups:
            raise Problem(
                "forbidden",
                f"{body.action} is of the endpoints of {group}, which this application does not "
                f"offer: add {group!r} to install(endpoints=...)",
            )
        ended, otherwise = set[str](), ""
        if body.action == "cancel-wait":
            # All at once, as finding one looks at all that wait on its key.
            ended, otherwise = await self._waits.cancel(body.targets)
        results = []
        budget = TurnBudget()
        for target in body.targets:
            detail, is_done = otherwise, False
            try:
                if body.action != "cancel-wait":
                    detail, is_done = await self._act(raw, body, target), True
                elif target in ended:
                    # A target that is given twice was ended once.
                    ended.remove(target)
                    detail, is_done = "the wait has ended as cancelled", True
            except PurgatoryError as exc:
                detail = problem_of_error(exc).detail
                release_frames(exc)
            _log(raw, body.action, target, detail, is_done=is_done)
            results.append(ActionResult(target=target, done=is_done, detail=detail))
            await budget.yield_if_spent()
        return ActionsResponse(results=results)

    async def _act(self, raw: RawRequest, body: ActionsBody, target: str) -> str:
        """Do the action on one target, and return what happened; raise PurgatoryError."""
        purgatory = self._purgatory
        match body.action:
            case "fire":
                fired = await purgatory.fire(target, body.value, owner=raw.permit.identity)
                jobs = f", and decided {fired.jobs} jobs" if fired.jobs else ""
                return f"ended {fired.completed} waits of this worker{jobs}"
            case "drop-key":
                return f"cancelled {await purgatory.cancel(target)} waits of this worker"
            case "cancel-job":
                return f"it is {(await purgatory.jobs.cancel(target)).state}"
            case "run-job":
                job = await purgatory.jobs.run_now(target)
                if (await purgatory.jobs.paused()).covers(job.handler):
                    return f"its handler {job.handler} is paused: it starts once that is resumed"
                return "it is due now"
            case "retry-job":
                await purgatory.jobs.retry(target)
                return "it is due now, with all its attempts"
            case "pause":
                await purgatory.jobs.pause(target)
                return "no more of its jobs are started, in any worker"
        resumed = await purgatory.jobs.resume(None if body.action == "resume-all" else target)
        return f"{resumed} jobs had waited for that"


def _log(raw: RawRequest, action: str, target: str, detail: str, *, is_done: bool) -> None:
    identity, target = raw.permit.identity, target[:_MAX_LOGGED]
    audit.info(
        "%s: %s %s: %s",
        escaped(identity or raw.client or "anyone"),
        action,
        escaped(target),
        escaped(detail),
        extra={"action": action, "identity": identity, "target": target, "is_done": is_done},
    )
