"""Environment variables that look like settings, and are none."""

from __future__ import annotations

import re
from collections.abc import Mapping
from difflib import get_close_matches

from app.settings import Settings

PREFIX = "PURGATORY_"
# Read when the library is installed, and by the pipeline.
_NOT_OURS = {"PURE_PYTHON", "STORE", "TOKEN"}
# Kubernetes sets these for a Service that is called purgatory.
_OF_KUBERNETES = re.compile(r"SERVICE_(HOST|PORT.*)|PORT_\d+_.*")


def unknown_variables(environment: Mapping[str, str]) -> list[str]:
    """Return a sentence for each variable that begins like a setting and is none, in order.

    With the setting that is called nearly so, if there is one; never with the variable's value.
    """
    variables = {
        name.upper(): str(field.validation_alias or f"{PREFIX}{name.upper()}")
        for name, field in Settings.model_fields.items()
    }
    found = []
    for variable, value in sorted(environment.items()):
        # As pydantic-settings reads them, in any case.
        name = variable.upper().removeprefix(PREFIX)
        if name == variable.upper() or name in _NOT_OURS or _is_of_kubernetes(name, value):
            continue
        if variables.get(name) == PREFIX + name:
            continue
        near = get_close_matches(name, variables, n=1)
        hint = f"did you mean {variables[near[0]]}?" if near else "docs/operating.md lists them all"
        found.append(f"{variable[:64]} is no setting, and is ignored: {hint}")
    return found


def _is_of_kubernetes(name: str, value: str) -> bool:
    return _OF_KUBERNETES.fullmatch(name) is not None or (
        name == "PORT" and value.startswith(("tcp://", "udp://"))
    )
