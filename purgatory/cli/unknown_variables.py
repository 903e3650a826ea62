"""Environment variables that look like settings but are not."""

from __future__ import annotations

import re
from collections.abc import Mapping
from difflib import get_close_matches
from typing import Final

_PREFIX: Final = "PURGATORY_"
# Of the service (docs/reference/service.md), this command, the installation and the pipeline.
KNOWN: Final = frozenset(
    [
        "ACCESS_LOG",
        "ALLOWED_HOSTS",
        "ALLOW_ANONYMOUS",
        "CALLBACK_ALLOWED_HOSTS",
        "CALLBACK_ALLOW_PRIVATE",
        "CALLBACK_MAX_PER_HOST",
        "CALLBACK_MAX_PER_OWNER",
        "CALLBACK_MAX_RUNNING",
        "CALLBACK_SECRET",
        "CALLBACK_SECRETS",
        "CALLBACK_TIMEOUT",
        "DATA_DIR",
        "DEFAULT_WAIT",
        "HEARTBEAT",
        "JOBS_URL",
        "JOB_GRACE",
        "JOB_HANDLERS",
        "JOB_LEASE",
        "JOURNAL_DIR",
        "JOURNAL_KEYS",
        "JOURNAL_MAX_AGE",
        "JOURNAL_SAMPLE",
        "JOURNAL_SECRET",
        "KEEP_ALIVE",
        "LOG_FORMAT",
        "LOG_LEVEL",
        "MAX_INCOMPLETE_BYTES",
        "MAX_KEYS_PER_OPERATION",
        "MAX_PARKED",
        "MAX_PARKED_BYTES",
        "MAX_PARKED_PER_CLIENT",
        "MAX_PARKED_PER_KEY",
        "MAX_RESPONSE_BYTES",
        "MAX_SIGNALS",
        "MAX_SIGNALS_PER_KEY",
        "MAX_SIGNAL_AGE",
        "MAX_SIGNAL_BYTES",
        "MAX_STREAM",
        "MAX_UNREAD_BYTES",
        "MAX_VALUE_BYTES",
        "MAX_WAIT",
        "METRICS",
        "METRICS_DIR",
        "PURE_PYTHON",
        "REQUEST_TIMEOUT",
        "RESPONSE_TIMEOUT",
        "SIGNALS",
        "SIGNALS_ACK",
        "SIGNALS_SHARDS",
        "STORE",
        "TOKEN",
        "TOKENS",
        "TOKENS_FILE",
        "TRUSTED_PROXIES",
        "URL",
    ]
)
# Kubernetes sets these for a Service named purgatory.
_KUBERNETES: Final = re.compile(r"SERVICE_(HOST|PORT.*)|PORT(_\d+_.*)?")


def unknown_variables(environment: Mapping[str, str]) -> list[str]:
    """Return a sentence for each variable with our prefix that nothing here reads, sorted.

    It suggests the most similar name, and never contains the value.
    """
    found = []
    for variable in sorted(environment):
        name = variable.upper().removeprefix(_PREFIX)
        if name == variable.upper() or name in KNOWN or _KUBERNETES.fullmatch(name):
            continue
        near = get_close_matches(name, KNOWN, n=1)
        hint = f"did you mean {_PREFIX}{near[0]}?" if near else "see docs/reference/service.md"
        found.append(f"{variable[:64]} is not a setting and is ignored: {hint}")
    return found
