"""Detection of environment variables that look like settings but are not."""

from __future__ import annotations

from collections.abc import Mapping

from app.settings import Settings
from purgatory.environment import PREFIX, unknown_variables


def unknown_settings(environment: Mapping[str, str]) -> list[str]:
    """Return a warning for each variable with our prefix that is not a setting, sorted."""
    variables = {
        name.upper(): str(field.validation_alias or f"{PREFIX}{name.upper()}")
        for name, field in Settings.model_fields.items()
    }
    return unknown_variables(environment, variables)
