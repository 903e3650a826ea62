"""The service's settings, from the environment."""

from __future__ import annotations

import json
from ipaddress import ip_address
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, SecretStr, field_validator, model_validator
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from app.job_store import make_job_store
from purgatory import Limits
from purgatory.fastapi import BearerTokens, WaitSettings
from purgatory.jobs import JobStore, WorkerSettings
from purgatory.jobs.callbacks.webhook import Webhook

_LIMITS = Limits()
_JOBS = WorkerSettings()
_WAITS = WaitSettings()


class Settings(BaseSettings):
    """Every setting is an environment variable: PURGATORY_ and its name, but for HOST and PORT.

    A value that is no good stops the service with a sentence that names it.
    """

    # hide_input: pydantic's message for values that do not fit together would show them all.
    model_config = SettingsConfigDict(
        env_prefix="PURGATORY_", frozen=True, hide_input_in_errors=True, allow_inf_nan=False
    )

    host: str = Field("127.0.0.1", validation_alias="HOST")
    port: int = Field(8000, ge=0, le=65535, validation_alias="PORT")

    default_wait: float = Field(_WAITS.default_wait, ge=0, description="Seconds.")
    max_wait: float = Field(_WAITS.max_wait, ge=0, le=3600, description="Seconds.")
    max_parked: int = Field(_LIMITS.max_parked, ge=1)
    max_parked_per_key: int = Field(_LIMITS.max_parked_per_key, ge=1)
    max_keys_per_operation: int = Field(_LIMITS.max_keys_per_operation, ge=1)
    max_signals: int = Field(_LIMITS.max_signals, ge=1)
    max_signals_per_key: int = Field(_LIMITS.max_signals_per_key, ge=1)
    max_signal_bytes: int = Field(_LIMITS.max_signal_bytes, ge=1)
    max_signal_age: float = Field(_LIMITS.max_signal_age, gt=0, description="Seconds.")
    max_value_bytes: int = Field(_LIMITS.max_value_bytes, ge=1)

    max_parked_per_client: int = Field(_WAITS.max_parked_per_client, ge=1)
    trusted_proxies: str = Field(
        "127.0.0.1", description="Addresses whose X-Forwarded-For is believed, comma-separated."
    )

    tokens: SecretStr | None = Field(
        None, description="Tokens or their hashes, each with its scopes, separated by semicolons."
    )
    tokens_file: Path | None = Field(None, description="The same, a line each.")
    allow_anonymous: bool = Field(
        False, description="Listen beyond loopback without tokens: everyone may do everything."
    )

    journal_dir: Path | None = Field(
        None, description="Where the history of operations is written; none is, without."
    )
    journal_max_age: float = Field(60.0, gt=0, description="Seconds until a file is complete.")
    journal_sample: Annotated[dict[str, Annotated[float, Field(ge=0, le=1)]], NoDecode] = Field(
        {}, description="The share that is written of a kind, as JSON; all of the others."
    )
    journal_keys: Literal["plain", "prefix", "hash"] = "plain"
    journal_secret: SecretStr | None = Field(
        None, description="What keys are hashed with: 16 to 64 bytes."
    )

    jobs_url: SecretStr | None = Field(
        None, description="Where jobs are kept; a SQLite file in the data directory unless given."
    )
    data_dir: Path = Field(Path("data"), description="Made where it is not there.")
    job_handlers: str = Field(
        "", description="Names of handlers that other services on the store run, comma-separated."
    )
    max_running_jobs: int = Field(_JOBS.max_running, ge=1)
    job_lease: float = Field(
        _JOBS.lease_ms / 1000,
        ge=1,
        le=3600,
        description="Seconds after which others have the jobs of a process that died.",
    )
    job_grace: float = Field(_JOBS.grace, ge=0, le=3600, description="Seconds.")
    callback_secret: SecretStr | None = Field(None, min_length=16, description="Signs callbacks.")
    callback_timeout: float = Field(10.0, gt=0, le=3600, description="Seconds.")
    callback_allow_private: bool = Field(
        False, description="Callbacks may go to loopback, private and link-local addresses."
    )

    access_log: bool = Field(True, description="A line for each request; costs 44 us each.")
    log_level: Literal["critical", "error", "warning", "info", "debug"] = "info"
    keep_alive: int = Field(
        75, ge=1, description="Seconds; more than the idle timeout of the load balancer in front."
    )

    @field_validator("journal_sample", mode="before")
    @classmethod
    def _parse_sample(cls, value: object) -> object:
        # Here rather than by pydantic-settings, whose error names neither variable nor way out.
        if not isinstance(value, str):
            return value
        try:
            return json.loads(value)
        except ValueError:
            raise ValueError('give JSON, such as {"watch": 0.1}') from None

    @model_validator(mode="after")
    def _check_together(self) -> Settings:
        try:
            self.wait_settings()
        except ValueError as exc:
            raise ValueError(f"PURGATORY_DEFAULT_WAIT and PURGATORY_MAX_WAIT: {exc}") from exc
        if self.max_signal_bytes < self.max_value_bytes:
            raise ValueError(
                f"PURGATORY_MAX_SIGNAL_BYTES is {self.max_signal_bytes}, less than "
                f"PURGATORY_MAX_VALUE_BYTES, {self.max_value_bytes}: raise it, since at least one "
                "value has to fit"
            )
        if self.tokens is not None and self.tokens_file is not None:
            raise ValueError("give PURGATORY_TOKENS or PURGATORY_TOKENS_FILE, not both")
        if (self.journal_keys == "hash") != (self.journal_secret is not None):
            raise ValueError(
                "PURGATORY_JOURNAL_KEYS=hash and PURGATORY_JOURNAL_SECRET go together: give both, "
                "or neither"
            )
        if not (self.has_tokens or self.allow_anonymous or _is_loopback(self.host)):
            raise ValueError(
                f"HOST is {self.host!r}, which others can reach, and there is no token: set "
                "PURGATORY_TOKENS or PURGATORY_TOKENS_FILE, or PURGATORY_ALLOW_ANONYMOUS=1 if "
                "everyone may do everything"
            )
        return self

    @property
    def address(self) -> str:
        """Where the service is found, as a URL."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{host}:{self.port}"

    @property
    def has_tokens(self) -> bool:
        """True iff whoever asks needs a token."""
        return self.tokens is not None or self.tokens_file is not None

    def bearer_tokens(self) -> BearerTokens | None:
        """Return the tokens, or None where none are needed; raise ValueError or OSError."""
        if self.tokens is not None:
            return BearerTokens.from_text(self.tokens.get_secret_value())
        if self.tokens_file is not None:
            return BearerTokens.from_file(self.tokens_file)
        return None

    def limits(self) -> Limits:
        """Return the purgatory's bounds."""
        return Limits(
            max_parked=self.max_parked,
            max_parked_per_key=self.max_parked_per_key,
            max_keys_per_operation=self.max_keys_per_operation,
            max_signals=self.max_signals,
            max_signals_per_key=self.max_signals_per_key,
            max_signal_bytes=self.max_signal_bytes,
            max_signal_age=self.max_signal_age,
            max_value_bytes=self.max_value_bytes,
        )

    def job_store(self) -> JobStore:
        """Return the store of jobs; raise ValueError or OSError."""
        url = None if self.jobs_url is None else self.jobs_url.get_secret_value()
        return make_job_store(url, self.data_dir)

    def job_settings(self) -> WorkerSettings:
        """Return how jobs are run."""
        return WorkerSettings(
            max_running=self.max_running_jobs,
            lease_ms=round(1000 * self.job_lease),
            grace=self.job_grace,
        )

    def webhook(self) -> Webhook:
        """Return what makes callbacks."""
        secret = self.callback_secret
        return Webhook(
            None if secret is None else secret.get_secret_value(),
            timeout=self.callback_timeout,
            allow_private=self.callback_allow_private,
        )

    def elsewhere(self) -> list[str]:
        """Return the names of handlers that other services run."""
        return [name for name in map(str.strip, self.job_handlers.split(",")) if name]

    def wait_settings(self) -> WaitSettings:
        """Return how long a request may be parked."""
        return WaitSettings(
            default_wait=self.default_wait,
            max_wait=self.max_wait,
            max_parked_per_client=self.max_parked_per_client,
        )


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False
