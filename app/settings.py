"""The service's settings, from the environment."""

from __future__ import annotations

import json
from ipaddress import ip_address
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field, SecretStr, field_validator, model_validator
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from app.job_store import make_job_store
from app.signals import make_signals
from purgatory import Limits
from purgatory.fastapi import BearerTokens, TrustedHosts, WaitSettings
from purgatory.jobs import JobStore, WorkerSettings
from purgatory.jobs.callbacks import CallbackSecret
from purgatory.jobs.callbacks.webhook import Webhook

if TYPE_CHECKING:
    from purgatory.signals.redis import RedisSignals

_LIMITS = Limits()
_JOBS = WorkerSettings()
_WAITS = WaitSettings()


class Settings(BaseSettings):
    """The settings: each is the environment variable PURGATORY_NAME, except HOST, PORT and WORKERS.

    An invalid value stops the service with a message that names the variable.
    """

    # hide_input: pydantic's messages about several values would show all of them, secrets too.
    model_config = SettingsConfigDict(
        env_prefix="PURGATORY_", frozen=True, hide_input_in_errors=True, allow_inf_nan=False
    )

    host: str = Field("127.0.0.1", validation_alias="HOST")
    port: int = Field(8000, ge=0, le=65535, validation_alias="PORT")
    workers: int = Field(
        1,
        ge=1,
        le=1024,
        validation_alias="WORKERS",
        description="Processes of `python -m app`; several share signals through Redis.",
    )

    default_wait: float = Field(
        _WAITS.default_wait, ge=0, description="Seconds; at most the maximum if unset."
    )
    max_wait: float = Field(_WAITS.max_wait, ge=0, le=3600, description="Seconds.")
    max_stream: float = Field(
        _WAITS.max_stream, gt=0, le=86400, description="Seconds until a stream of events ends."
    )
    heartbeat: float = Field(
        _WAITS.heartbeat, gt=0, le=3600, description="Seconds between comments in a stream."
    )
    max_parked: int = Field(_LIMITS.max_parked, ge=1)
    max_parked_bytes: int = Field(
        _LIMITS.max_parked_bytes,
        ge=1,
        description="Bytes of the keys of all parked requests with several keys.",
    )
    max_parked_per_key: int = Field(_LIMITS.max_parked_per_key, ge=1)
    max_keys_per_operation: int = Field(_LIMITS.max_keys_per_operation, ge=1)
    max_signals: int = Field(_LIMITS.max_signals, ge=1)
    max_signals_per_key: int = Field(_LIMITS.max_signals_per_key, ge=1)
    max_signal_bytes: int = Field(_LIMITS.max_signal_bytes, ge=1)
    max_signal_age: float = Field(_LIMITS.max_signal_age, gt=0, description="Seconds.")
    max_value_bytes: int = Field(_LIMITS.max_value_bytes, ge=1)

    max_parked_per_client: int = Field(_WAITS.max_parked_per_client, ge=1)
    request_timeout: float = Field(
        _WAITS.request_timeout,
        gt=0,
        le=3600,
        description="Seconds in which a request has to arrive, from its first byte to its last.",
    )
    max_incomplete_bytes: int = Field(
        _WAITS.max_incomplete_bytes,
        ge=1,
        description="Bytes of all requests together that have not arrived completely.",
    )
    max_response_bytes: int = Field(
        _WAITS.max_response_bytes,
        ge=1,
        description="Bytes of signals in one response; `more` says that others follow.",
    )
    response_timeout: float = Field(
        _WAITS.response_timeout,
        gt=0,
        le=3600,
        description="Seconds in which a client must read some of its response.",
    )
    max_unread_bytes: int = Field(
        _WAITS.max_unread_bytes,
        ge=1,
        description="Bytes of all responses together that their clients have not read.",
    )
    trusted_proxies: str = Field(
        "127.0.0.1",
        description="Comma-separated addresses of proxies whose X-Forwarded-For is trusted.",
    )

    tokens: SecretStr | None = Field(
        None, description="Tokens or their hashes, each with scopes, separated by semicolons."
    )
    tokens_file: Path | None = Field(None, description="A file with one token per line.")
    allowed_hosts: str = Field(
        "",
        description="Without tokens: comma-separated names by which clients may ask, besides "
        "addresses and localhost; * allows all.",
    )
    allow_anonymous: bool = Field(
        False, description="Listen beyond loopback without tokens; everyone may do everything."
    )

    journal_dir: Path | None = Field(
        None, description="The directory for the history of operations; none is written if unset."
    )
    journal_max_age: float = Field(60.0, gt=0, description="Seconds until a file is completed.")
    journal_sample: Annotated[dict[str, Annotated[float, Field(ge=0, le=1)]], NoDecode] = Field(
        {}, description="The fraction to write per kind, as JSON; other kinds are written fully."
    )
    journal_keys: Literal["plain", "prefix", "hash"] = "plain"
    journal_secret: SecretStr | None = Field(
        None, description="The secret for hashing keys: 16 to 64 bytes."
    )

    signals: SecretStr | None = Field(
        None,
        description="The URL of a Redis through which several processes share signals; in memory, "
        "for one process, if unset.",
    )
    signals_shards: int = Field(1, ge=1, le=256, description="Logs of signals; same everywhere.")
    signals_ack: Literal["memory", "aof"] = Field(
        "memory", description="When a fire is acknowledged: in the memory of Redis, or on its disk."
    )
    jobs_url: SecretStr | None = Field(
        None, description="The URL of the job store; default: a SQLite file in the data directory."
    )
    data_dir: Path = Field(
        Path("data"), description="The directory of the SQLite file; created if missing."
    )
    job_handlers: str = Field(
        "",
        description="Comma-separated names of handlers that other services on the same store run.",
    )
    job_lease: float = Field(
        _JOBS.lease_ms / 1000,
        ge=1,
        le=3600,
        description="Seconds until other processes take over the jobs of a killed process.",
    )
    job_grace: float = Field(_JOBS.grace_ms / 1000, ge=0, le=3600, description="Seconds.")
    callback_secret: SecretStr | None = Field(
        None, min_length=16, description="The key for signing callbacks."
    )
    callback_timeout: float = Field(10.0, gt=0, le=3600, description="Seconds.")
    callback_max_running: int = Field(200, ge=1, description="Callbacks that run at once.")
    callback_max_per_owner: int = Field(
        100, ge=1, description="Of those, the callbacks of one token."
    )
    callback_max_per_host: int = Field(
        100, ge=1, description="Of those, the callbacks to one host."
    )
    callback_allow_private: bool = Field(
        False, description="Allow callbacks to loopback, private and link-local addresses."
    )

    callback_allowed_hosts: str = Field(
        "",
        description="Comma-separated hosts that callbacks may reach at any address: name at ports "
        "80 and 443, or name:port.",
    )
    callback_secrets: SecretStr | None = Field(
        None,
        description="Values that headers of callbacks name as secret:NAME, as JSON: "
        '{"NAME": {"value": "Bearer ...", "hosts": ["shop.example"]}}.',
    )

    metrics: bool = Field(
        False, description="Serve metrics for Prometheus at /metrics; needs the extra metrics."
    )
    metrics_dir: Path | None = Field(
        None,
        description="The directory through which several workers share their metrics; one that "
        "is removed at the end if unset.",
    )

    tracing: bool = Field(
        False,
        description="Trace waits and jobs by OpenTelemetry, as its own variables, OTEL_*, say; "
        "needs the extra tracing and an SDK.",
    )

    access_log: bool = Field(True, description="Log each request.")
    log_level: Literal["critical", "error", "warning", "info", "debug"] = "info"
    log_format: Literal["text", "json"] = "text"
    keep_alive: int = Field(
        75,
        ge=1,
        description="Seconds; set it above the idle timeout of the load balancer in front.",
    )

    @field_validator("journal_sample", mode="before")
    @classmethod
    def _parse_sample(cls, value: object) -> object:
        # pydantic's own errors do not name the correct format.
        if not isinstance(value, str):
            return value
        try:
            given = json.loads(value)
        except ValueError:
            given = None
        if not isinstance(given, dict):
            raise ValueError('give JSON with a fraction for each kind, such as {"watch": 0.1}')
        return given

    @model_validator(mode="after")
    def _check_together(self) -> Settings:
        try:
            self.wait_settings()
        except ValueError as exc:
            raise ValueError(f"PURGATORY_DEFAULT_WAIT and PURGATORY_MAX_WAIT: {exc}") from exc
        if self.max_signal_bytes < self.max_value_bytes:
            raise ValueError(
                f"PURGATORY_MAX_SIGNAL_BYTES is {self.max_signal_bytes}, less than "
                f"PURGATORY_MAX_VALUE_BYTES, {self.max_value_bytes}: raise it so that at least one "
                "value fits"
            )
        if self.tokens is not None and self.tokens_file is not None:
            raise ValueError("set PURGATORY_TOKENS or PURGATORY_TOKENS_FILE, not both")
        if (self.journal_keys == "hash") != (self.journal_secret is not None):
            raise ValueError(
                "PURGATORY_JOURNAL_KEYS=hash and PURGATORY_JOURNAL_SECRET belong together: set "
                "both or neither"
            )
        if self.workers > 1 and self.signals is None:
            raise ValueError(
                f"WORKERS is {self.workers}, and each worker would keep signals in its own memory: "
                f"share them, make run WORKERS={self.workers} "
                "PURGATORY_SIGNALS=redis://localhost:6379"
            )
        if self.workers > 1 and self._jobs_scheme() == "memory":
            raise ValueError(
                f"WORKERS is {self.workers}, and each worker would keep jobs in its own memory: "
                "unset PURGATORY_JOBS_URL for a SQLite file, or set it to redis://localhost:6379"
            )
        if not (self.has_tokens or self.allow_anonymous or _is_loopback(self.host)):
            raise ValueError(
                f"HOST is {self.host!r}, not a loopback address, and there are no tokens: set "
                "PURGATORY_TOKENS or PURGATORY_TOKENS_FILE, or PURGATORY_ALLOW_ANONYMOUS=1 if "
                "everyone may do everything"
            )
        return self

    @property
    def address(self) -> str:
        """The URL of the service."""
        return service_url(self.host, self.port)

    @property
    def has_tokens(self) -> bool:
        """True iff clients need a token."""
        return self.tokens is not None or self.tokens_file is not None

    def bearer_tokens(self) -> BearerTokens | None:
        """Return the tokens, or None if none are needed; raise ValueError or OSError."""
        if self.tokens is not None:
            return BearerTokens.from_text(self.tokens.get_secret_value())
        if self.tokens_file is not None:
            return BearerTokens.from_file(self.tokens_file)
        return None

    def authorize(self) -> BearerTokens | TrustedHosts:
        """Return the access control; raise ValueError or OSError."""
        return self.bearer_tokens() or TrustedHosts(_names(self.allowed_hosts))

    def limits(self) -> Limits:
        """Return the limits of the purgatory."""
        return Limits(
            max_parked=self.max_parked,
            max_parked_bytes=self.max_parked_bytes,
            max_parked_per_key=self.max_parked_per_key,
            max_keys_per_operation=self.max_keys_per_operation,
            max_signals=self.max_signals,
            max_signals_per_key=self.max_signals_per_key,
            max_signal_bytes=self.max_signal_bytes,
            max_signal_age=self.max_signal_age,
            max_value_bytes=self.max_value_bytes,
        )

    def job_store(self) -> JobStore:
        """Return the job store; raise ValueError or OSError."""
        url = None if self.jobs_url is None else self.jobs_url.get_secret_value()
        return make_job_store(url, self.data_dir)

    def _jobs_scheme(self) -> str:
        return "" if self.jobs_url is None else self.jobs_url.get_secret_value().partition(":")[0]

    def shared_signals(self) -> RedisSignals | None:
        """Return the signals that processes share, None for those in memory; raise ValueError."""
        if self.signals is None:
            return None
        return make_signals(self.signals.get_secret_value(), self.signals_shards, self.signals_ack)

    def job_settings(self) -> WorkerSettings:
        """Return the settings of the job worker."""
        return WorkerSettings(
            lease_ms=round(1000 * self.job_lease),
            grace_ms=round(1000 * self.job_grace),
        )

    def webhook(self) -> Webhook:
        """Return the handler that makes callbacks."""
        secret = self.callback_secret
        return Webhook(
            None if secret is None else secret.get_secret_value(),
            timeout=self.callback_timeout,
            allow_private=self.callback_allow_private,
            allowed_hosts=_names(self.callback_allowed_hosts),
            secrets=self._callback_secrets(),
            max_running=self.callback_max_running,
            max_per_owner=self.callback_max_per_owner,
            max_per_host=self.callback_max_per_host,
        )

    def _callback_secrets(self) -> dict[str, CallbackSecret]:
        if self.callback_secrets is None:
            return {}
        wanted = 'give JSON such as {"billing": {"value": "Bearer ...", "hosts": ["shop.example"]}}'
        # Without the original errors, which may quote a secret.
        try:
            given = json.loads(self.callback_secrets.get_secret_value())
            secrets = {name: (entry["value"], entry["hosts"]) for name, entry in given.items()}
        except (ValueError, TypeError, KeyError, AttributeError):
            raise ValueError(f"PURGATORY_CALLBACK_SECRETS cannot be read: {wanted}") from None
        try:
            return {
                name: CallbackSecret(value, hosts=hosts) for name, (value, hosts) in secrets.items()
            }
        except (ValueError, TypeError, AttributeError) as exc:
            raise ValueError(f"PURGATORY_CALLBACK_SECRETS: {exc}; {wanted}") from None

    def handled_elsewhere(self) -> list[str]:
        """Return the names of handlers that other services run."""
        return _names(self.job_handlers)

    def wait_settings(self) -> WaitSettings:
        """Return the limits of waits over HTTP."""
        return WaitSettings(
            default_wait=self.default_wait,
            max_wait=self.max_wait,
            max_stream=self.max_stream,
            heartbeat=self.heartbeat,
            max_parked_per_client=self.max_parked_per_client,
            request_timeout=self.request_timeout,
            max_incomplete_bytes=self.max_incomplete_bytes,
            max_response_bytes=self.max_response_bytes,
            response_timeout=self.response_timeout,
            max_unread_bytes=self.max_unread_bytes,
        )


def service_url(host: str, port: int) -> str:
    """Return the URL of the service at an address."""
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def _names(text: str) -> list[str]:
    return [name for name in map(str.strip, text.split(",")) if name]


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False
