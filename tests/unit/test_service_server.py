"""How uvicorn serves the service."""

from __future__ import annotations

import uvicorn

from app.server import server_config
from app.settings import Settings


def test_a_worker_may_take_long_to_start() -> None:
    """Its supervisor, which pings it from the first moment, would kill it after uvicorn's 5 s."""
    config = server_config("app.server:create_worker_app", Settings())
    assert uvicorn.Config("app").timeout_worker_healthcheck < 10
    assert config.timeout_worker_healthcheck >= 30
