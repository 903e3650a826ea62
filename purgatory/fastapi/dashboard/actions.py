"""The actions of the dashboard, each with a line in the audit log."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final

from purgatory.errors import PurgatoryError
from purgatory.fastapi.dashboard.wait_list import (
    ActionResult,
    ActionsBody,
    ActionsResponse,
    WaitList,
)
from purgatory.fastapi.http.exception_handlers import problem_of_error
from purgatory.fastapi.http.problems import Problem, release_frames
from purgatory.fastapi.http.raw_request import RawRequest
from purgatory.fastapi.routing.raw_endpoint import EndpointContext
from purgatory.log_text import escaped
from purgatory.turn_budget import TurnBudget

audit = logging.getLogger("purgatory.audit")

# The group of endpoints that an action is of; without it, the action does not exist here either.
_GROUPS: Final = {
    "fire": "keys",
    "drop-key": "keys",
    "cancel-job": "jobs",
    "run-job": "jobs",
    "retry-job": "jobs",
    "pause": "jobs",
    "resume": "jobs",
    "resume-all": "jobs",
}
# Characters of a target in a line of the log.
_MAX_LOGGED: Final = 300


class Actions:
    """Performs actions of operators, on one target after the other, and logs each.

    Every action needs OPERATE, and in addition the permission that the same action needs at its
    own endpoint: FIRE on the key, DEFER for jobs. Actions of a group of endpoints that the
    application does not offer are refused.
    """

    def __init__(self, context: EndpointContext, waits: WaitList, groups: frozenset[str]) -> None:
        """Act on the purgatory of `context`, of which the endpoints of `groups` are offered."""
        self._purgatory = context.purgatory
        self._waits = waits
        self._groups = groups

    async def dashboard_actions(self, raw: RawRequest, body: ActionsBody) -> ActionsResponse:
        """Act on keys, waits or jobs.

        Do one action on up to 500 targets. Each is logged by `purgatory.audit`.
        """
        # A refusal of one target does not keep the action from the others.
        for access in body.accesses():
            raw.permit.check(access)
        self._require_group(body.action)
        if body.action == "cancel-wait":
            results = await self._cancel_waits(raw, body.targets)
        else:
            results = []
            budget = TurnBudget()
            for target in body.targets:
                results.append(await self._act(raw, body, target))
                await budget.yield_if_spent()
        return ActionsResponse(results=results)

    def _require_group(self, action: str) -> None:
        group = _GROUPS.get(action)
        if group is not None and group not in self._groups:
            raise Problem(
                "forbidden",
                f"{action} is of the endpoints of {group}, which this application does not offer: "
                f"add {group!r} to install(endpoints=...)",
            )

    async def _act(self, raw: RawRequest, body: ActionsBody, target: str) -> ActionResult:
        act: Callable[[str, Any, str | None], Awaitable[str]] = {
            "fire": self._fire,
            "drop-key": self._drop_key,
            "cancel-job": self._cancel_job,
            "run-job": self._run_job,
            "retry-job": self._retry_job,
            "pause": self._pause,
            "resume": self._resume,
            "resume-all": self._resume_all,
        }[body.action]
        try:
            detail, is_done = await act(target, body.value, raw.permit.identity), True
        except (PurgatoryError, Problem) as exc:
            problem = exc if isinstance(exc, Problem) else problem_of_error(exc)
            detail, is_done = problem.detail, False
            release_frames(exc)
        return _reported(raw, body.action, target, detail, is_done=is_done)

    async def _cancel_waits(self, raw: RawRequest, targets: Sequence[str]) -> list[ActionResult]:
        """End waits: all at once, as finding one looks at all that wait on its key."""
        otherwise = "the wait is over"
        ended = await self._waits.cancel_here(targets)
        try:
            async for each in self._waits.cancel_elsewhere(targets):
                ended |= each
        except PurgatoryError as exc:
            otherwise = problem_of_error(exc).detail
        results = []
        budget = TurnBudget()
        for target in targets:
            await budget.yield_if_spent()
            is_done = target in ended
            # A target that is given twice was ended once.
            ended.discard(target)
            detail = "the wait has ended as cancelled" if is_done else otherwise
            results.append(_reported(raw, "cancel-wait", target, detail, is_done=is_done))
        return results

    async def _fire(self, key: str, value: Any, owner: str | None) -> str:
        fired = await self._purgatory.fire(key, value, owner=owner)
        jobs = f", and decided {fired.jobs} jobs" if fired.jobs else ""
        return f"ended {fired.completed} waits of this worker{jobs}"

    async def _drop_key(self, key: str, value: Any, owner: str | None) -> str:
        return f"cancelled {await self._purgatory.cancel(key)} waits of this worker"

    async def _cancel_job(self, job_id: str, value: Any, owner: str | None) -> str:
        return f"it is {(await self._purgatory.jobs.cancel(job_id)).state}"

    async def _run_job(self, job_id: str, value: Any, owner: str | None) -> str:
        job = await self._purgatory.jobs.run_now(job_id)
        if (await self._purgatory.jobs.paused()).covers(job.handler):
            return f"its handler {job.handler} is paused: it starts once that is resumed"
        return "it is due now"

    async def _retry_job(self, job_id: str, value: Any, owner: str | None) -> str:
        await self._purgatory.jobs.retry(job_id)
        return "it is due now, with all its attempts"

    async def _pause(self, handler: str, value: Any, owner: str | None) -> str:
        await self._purgatory.jobs.pause(handler)
        return "no more of its jobs are started, in any worker"

    async def _resume(self, handler: str, value: Any, owner: str | None) -> str:
        return f"{await self._purgatory.jobs.resume(handler)} jobs had waited for that"

    async def _resume_all(self, target: str, value: Any, owner: str | None) -> str:
        return f"{await self._purgatory.jobs.resume()} jobs had waited for that"


def _reported(
    raw: RawRequest, action: str, target: str, detail: str, *, is_done: bool
) -> ActionResult:
    """Return the result of an action on one target, with a line of it in the audit log."""
    audit.info(
        "%s: %s %s: %s",
        escaped(raw.permit.identity or raw.client or "anyone"),
        action,
        escaped(target[:_MAX_LOGGED]),
        escaped(detail),
        extra={
            "action": action,
            "identity": raw.permit.identity,
            "target": target[:_MAX_LOGGED],
            "is_done": is_done,
        },
    )
    return ActionResult(target=target, done=is_done, detail=detail)
