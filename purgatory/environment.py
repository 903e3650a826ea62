"""What a process may find around it: closed streams, another distribution, unknown variables."""

from __future__ import annotations

import os
import re
import sys
import warnings
from collections.abc import Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Final


def discard_closed_streams() -> None:
    """Replace standard streams that are closed by os.devnull.

    Python has None for such a stream, which loggers and terminals do not accept. For commands,
    before they write or open anything.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            # The lowest free number, which is that of the stream: no socket gets it.
            descriptor = os.open(os.devnull, os.O_RDONLY if mode == "r" else os.O_WRONLY)
            # For the processes of workers, which would find it closed again.
            os.set_inheritable(descriptor, True)
            setattr(sys, name, os.fdopen(descriptor, mode, encoding="utf-8"))


_FOLDER: Final = Path(__file__).parent
# Files of the other one, in all of its versions, and of none of ours.
_OTHERS: Final = ("service/_async", "service/_sync", "domain/messages")


def warn_of_another_distribution(folder: Path = _FOLDER) -> None:
    """Warn if files of the other distribution are in the folder of this package.

    Each has overwritten files of the other, so one of the two does not work.
    """
    if any((folder / name).exists() for name in _OTHERS):
        warnings.warn(
            "fastapi-purgatory and the circuit breaker purgatory are both installed, and share the "
            "import name: run `pip uninstall purgatory fastapi-purgatory`, then install only one",
            RuntimeWarning,
            stacklevel=3,
        )


PREFIX: Final = "PURGATORY_"
# Read by this command, the installation and the pipeline, not by the service.
NOT_OF_SERVICE: Final = frozenset(["PURE_PYTHON", "STORE", "TOKEN", "URL"])
# Those of the service are in docs/reference/service.md.
KNOWN: Final = NOT_OF_SERVICE | frozenset(
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
        "REQUEST_TIMEOUT",
        "RESPONSE_TIMEOUT",
        "SIGNALS",
        "SIGNALS_ACK",
        "SIGNALS_SHARDS",
        "TOKENS",
        "TOKENS_FILE",
        "TRACING",
        "TRUSTED_PROXIES",
    ]
)
# Kubernetes sets these for a Service named purgatory.
_KUBERNETES: Final = re.compile(r"SERVICE_(HOST|PORT.*)|PORT_\d+_.*")
_ADDRESS: Final = ("tcp://", "udp://")


def unknown_variables(
    environment: Mapping[str, str], variables: Mapping[str, str] | None = None
) -> list[str]:
    """Return a sentence for each variable with our prefix that nothing here reads, sorted.

    It suggests the most similar of `variables`, by their names without the prefix, and never
    contains the value. By default, they are all that are known.
    """
    if variables is None:
        variables = {name: PREFIX + name for name in KNOWN}
    found = []
    for variable, value in sorted(environment.items()):
        # Like pydantic-settings: upper and lower case are equal.
        name = variable.upper().removeprefix(PREFIX)
        if name == variable.upper() or variables.get(name) == PREFIX + name:
            continue
        if name in NOT_OF_SERVICE or _is_from_kubernetes(name, value):
            continue
        near = get_close_matches(name, variables, n=1)
        hint = f"did you mean {variables[near[0]]}?" if near else "see docs/reference/service.md"
        found.append(f"{variable[:64]} is not a setting and is ignored: {hint}")
    return found


def _is_from_kubernetes(name: str, value: str) -> bool:
    return _KUBERNETES.fullmatch(name) is not None or (
        name == "PORT" and value.startswith(_ADDRESS)
    )
