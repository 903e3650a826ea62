"""Handlers: the functions that jobs run, their payload types, threads of sync handlers, and slots.

Not here: when a handler is called, and what its result makes of a job (`jobs.worker`); our own
handlers (`jobs.callbacks`).
"""

from purgatory.jobs.handlers.handler import HandlerOptions
from purgatory.jobs.handlers.job_context import JobContext
from purgatory.jobs.handlers.registry import JobFunction, JobHandlers, OptionalJobFunction

__all__ = [
    "HandlerOptions",
    "JobContext",
    "JobFunction",
    "JobHandlers",
    "OptionalJobFunction",
]
