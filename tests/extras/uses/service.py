"""What the service imports beside the library."""

import fastapi_standalone_docs  # type: ignore[import-untyped] # it ships no types
import httptools
import pydantic_settings
import uvloop

from purgatory.fastapi import create_health_router
from purgatory.jobs.callbacks.webhook import Webhook
from purgatory.jobs.sql import SqlJobStore
from purgatory.uvicorn import ParkingProtocol

assert all((fastapi_standalone_docs, httptools, pydantic_settings, uvloop))
assert all((create_health_router, Webhook, SqlJobStore, ParkingProtocol))
