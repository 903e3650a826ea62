"""The service's settings, from the environment."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from purgatory import Limits
from purgatory.fastapi import WaitSettings

_LIMITS = Limits()
_WAITS = WaitSettings()


class Settings(BaseSettings):
    """Every setting is an environment variable: PURGATORY_ and its name, but for HOST and PORT.

    A value that is no good stops the service with a sentence that names it.
    """

    model_config = SettingsConfigDict(env_prefix="PURGATORY_", frozen=True)

    host: str = Field("127.0.0.1", validation_alias="HOST")
    port: int = Field(8000, ge=0, le=65535, validation_alias="PORT")

    default_wait: float = Field(_WAITS.default_wait, ge=0, description="Seconds.")
    max_wait: float = Field(_WAITS.max_wait, ge=0, le=3600, description="Seconds.")
    max_parked: int = Field(_LIMITS.max_parked, ge=1)
    max_parked_per_key: int = Field(_LIMITS.max_parked_per_key, ge=1)
    max_signals: int = Field(_LIMITS.max_signals, ge=1)
    max_signals_per_key: int = Field(_LIMITS.max_signals_per_key, ge=1)
    max_signal_bytes: int = Field(_LIMITS.max_signal_bytes, ge=1)
    max_signal_age: float = Field(_LIMITS.max_signal_age, gt=0, description="Seconds.")
    max_value_bytes: int = Field(_LIMITS.max_value_bytes, ge=1)

    access_log: bool = Field(True, description="A line for each request; costs 44 us each.")
    log_level: Literal["critical", "error", "warning", "info", "debug"] = "info"
    keep_alive: int = Field(
        75, ge=1, description="Seconds; more than the idle timeout of the load balancer in front."
    )

    @model_validator(mode="after")
    def _check_waits(self) -> Settings:
        self.wait_settings()
        return self

    def limits(self) -> Limits:
        """Return the purgatory's bounds."""
        return Limits(
            max_parked=self.max_parked,
            max_parked_per_key=self.max_parked_per_key,
            max_signals=self.max_signals,
            max_signals_per_key=self.max_signals_per_key,
            max_signal_bytes=self.max_signal_bytes,
            max_signal_age=self.max_signal_age,
            max_value_bytes=self.max_value_bytes,
        )

    def wait_settings(self) -> WaitSettings:
        """Return how long a request may be parked."""
        return WaitSettings(default_wait=self.default_wait, max_wait=self.max_wait)
