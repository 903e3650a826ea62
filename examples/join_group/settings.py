"""The settings of the coordinator, and what it responds with when it cannot do what is asked."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import fields
from typing import Annotated, Final, Self

from fastapi import HTTPException
from pydantic import Field, TypeAdapter, model_validator
from pydantic.dataclasses import dataclass

from examples.kafka_broker.errors import ErrorCode
from examples.kafka_broker.groups.coordinator import GroupSettings


@dataclass(frozen=True, kw_only=True)
class Settings(GroupSettings):
    """Those of groups, with bounds for a public service; and of one of several workers."""

    # 1 MiB, which a commit may have, for members with 16 protocols, their names as long as allowed.
    max_group_size: Annotated[int, Field(ge=1, le=600)] = 500
    empty_group_retention_ms: int = 600_000
    redis_url: str = ""
    """Where several workers keep who owns which group; empty for a single worker."""
    address: Annotated[str, Field(pattern="[^/]$|^$")] = ""
    """Of this worker, as the members reach it, such as http://10.0.0.7:8000. Each has its own."""
    lease_ms: Annotated[int, Field(gt=0)] = 2_000
    """A dead or suspended worker is replaced after this."""

    @model_validator(mode="after")
    def _fit_together(self) -> Self:
        if self.redis_url and not self.address:
            raise ValueError("redis_url is set: give the address of this worker, too")
        # Members have to find the next owner, and join again, before their sessions would end.
        if self.lease_ms > self.min_session_timeout_ms / 2:
            raise ValueError(f"lease_ms is {self.lease_ms}: at most half of min_session_timeout_ms")
        return self

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] = os.environ) -> Self:
        """Return the settings of the variables JOIN_GROUP_NAME, such as JOIN_GROUP_REDIS_URL."""
        names = {f"JOIN_GROUP_{each.name.upper()}": each.name for each in fields(cls)}
        given = {names[name]: value for name, value in environment.items() if name in names}
        return TypeAdapter(cls).validate_python(given)


ERRORS: Final = {
    ErrorCode.GROUP_ID_NOT_FOUND: (404, "its first member creates it"),
    ErrorCode.UNKNOWN_MEMBER_ID: (
        404,
        "it was late, or left: join without member_id, as a new one",
    ),
    ErrorCode.ILLEGAL_GENERATION: (409, "there is another one: join again with the same id"),
    ErrorCode.REBALANCE_IN_PROGRESS: (409, "join again with the same id"),
    ErrorCode.INCONSISTENT_GROUP_PROTOCOL: (409, "support a protocol that all members have"),
    ErrorCode.GROUP_MAX_SIZE_REACHED: (409, "wait until a member leaves"),
    ErrorCode.INVALID_SESSION_TIMEOUT: (422, "give one within the bounds of the coordinator"),
    ErrorCode.NOT_COORDINATOR: (503, "the worker has lost the group: join again at any worker"),
    ErrorCode.COORDINATOR_NOT_AVAILABLE: (503, "repeat the request at any worker"),
}


def error(code: ErrorCode, reason: str = "") -> HTTPException:
    """Return an error that names the code in Kafka's words, and says what to do."""
    status, remedy = ERRORS[code]
    headers = {"Retry-After": "1"} if status == 503 else None
    return HTTPException(status, f"{code.name}: {reason or remedy}", headers)
