"""Detection of environment variables that look like settings but are not."""

from __future__ import annotations

import re
from collections.abc import Mapping
from difflib import get_close_matches

from app.settings import Settings

PREFIX = "PURGATORY_"
# Used by the installation of the library, the pipeline and the command `purgatory`.
_USED_ELSEWHERE = {"PURE_PYTHON", "STORE", "TOKEN", "URL"}
# Kubernetes sets these for a Service named purgatory.
_KUBERNETES = re.compile(r"SERVICE_(HOST|PORT.*)|PORT_\d+_.*")


def unknown_variables(environment: Mapping[str, str]) -> list[str]:
    """Return a warning for each variable with our prefix that is not a setting, sorted.

    It suggests the most similar setting, if there is one, and never contains the value.
    """
    variables = {
        name.upper(): str(field.validation_alias or f"{PREFIX}{name.upper()}")
        for name, field in Settings.model_fields.items()
    }
    found = []
    for variable, value in sorted(environment.items()):
        # Like pydantic-settings: upper and lower case are equal.
        name = variable.upper().removeprefix(PREFIX)
        if name == variable.upper() or name in _USED_ELSEWHERE or _is_from_kubernetes(name, value):
            continue
        if variables.get(name) == PREFIX + name:
            continue
        near = get_close_matches(name, variables, n=1)
        hint = f"did you mean {variables[near[0]]}?" if near else "see docs/reference/service.md"
        found.append(f"{variable[:64]} is not a setting and is ignored: {hint}")
    return found


def _is_from_kubernetes(name: str, value: str) -> bool:
    return _KUBERNETES.fullmatch(name) is not None or (
        name == "PORT" and value.startswith(("tcp://", "udp://"))
    )
