"""Callbacks: jobs that are HTTP requests to another service. Addresses, requests, signatures.

The only room that sends HTTP requests. Not here: retries and their delays (`jobs.worker`).
"""

from purgatory.jobs.callbacks.callback import CALLBACK, Callback
from purgatory.jobs.callbacks.headers import CallbackSecret, sign, verify_signature

__all__ = [
    "CALLBACK",
    "Callback",
    "CallbackSecret",
    "sign",
    "verify_signature",
]
