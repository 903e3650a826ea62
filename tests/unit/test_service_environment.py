"""Variables that were meant as settings of the service."""

from __future__ import annotations

from dataclasses import asdict

import pytest
from pydantic import ValidationError

from app.settings import Settings
from app.unknown_settings import unknown_settings
from purgatory import Limits
from tests.cases import cases


def test_settings_are_known() -> None:
    """Each of them, in any case, and what others read."""
    names = [
        field.validation_alias or f"PURGATORY_{name.upper()}"
        for name, field in Settings.model_fields.items()
    ]
    environment = dict.fromkeys([*map(str, names), "purgatory_max_wait", "PATH"], "")
    of_others = [f"PURGATORY_{name}" for name in ("PURE_PYTHON", "STORE", "TOKEN", "URL")]
    assert unknown_settings(environment | dict.fromkeys(of_others, "1")) == []


@cases(
    "variable, hint",
    [
        ("PURGATORY_MAX_PARKD", "did you mean PURGATORY_MAX_PARKED?"),
        ("PURGATORY_TOKNS", "did you mean PURGATORY_TOKENS?"),
        ("purgatory_job_leese", "did you mean PURGATORY_JOB_LEASE?"),
        ("PURGATORY_HOST", "did you mean HOST?"),
        ("PURGATORY_PORT", "did you mean PORT?"),
        ("PURGATORY_COLOUR_OF_THE_SKY", "see docs/reference/service.md"),
    ],
)
def test_what_is_nearly_a_setting_is_named(variable: str, hint: str) -> None:
    """With the setting that was meant, and without the value, which may be a secret."""
    [sentence] = unknown_settings({variable: "hunter2"})
    assert sentence.startswith(f"{variable} is not a setting") and sentence.endswith(hint)
    assert "hunter2" not in sentence


def test_what_kubernetes_sets_is_no_mistake() -> None:
    """For a Service that is called purgatory."""
    environment = {
        "PURGATORY_SERVICE_HOST": "10.0.0.1",
        "PURGATORY_SERVICE_PORT_HTTP": "8000",
        "PURGATORY_PORT": "tcp://10.0.0.1:8000",
        "PURGATORY_PORT_8000_TCP_ADDR": "10.0.0.1",
    }
    assert unknown_settings(environment) == []


def test_the_lease_of_jobs_is_a_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    """In seconds, within bounds."""
    assert Settings().job_settings().lease_ms == 15_000
    monkeypatch.setenv("PURGATORY_JOB_LEASE", "2.5")
    assert Settings().job_settings().lease_ms == 2_500
    for bad in ("0", "3601", "nan", "soon"):
        monkeypatch.setenv("PURGATORY_JOB_LEASE", bad)
        with pytest.raises(ValidationError, match="job_lease"):
            Settings()


@cases("name", ["max_signal_age", "journal_max_age", "callback_timeout", "job_grace", "max_wait"])
@cases("value", ["inf", "nan"])
def test_seconds_are_a_finite_number(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    """Each is refused by its own name."""
    monkeypatch.setenv(f"PURGATORY_{name.upper()}", value)
    with pytest.raises(ValidationError, match=name):
        Settings()


def test_limits_that_do_not_fit_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who raises one is told of the other, by the names of the variables."""
    monkeypatch.setenv("PURGATORY_MAX_VALUE_BYTES", "100000000")
    with pytest.raises(ValidationError) as caught:
        Settings()
    sentence = str(caught.value)
    assert "PURGATORY_MAX_SIGNAL_BYTES is 67108864, less than" in sentence
    assert "PURGATORY_MAX_VALUE_BYTES, 100000000: raise it" in sentence


def test_every_limit_is_a_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    """But for that on timeouts, which PURGATORY_MAX_WAIT is for."""
    names = asdict(Limits()).keys() - {"max_timeout"}
    # Downwards: all signals together have room for one value.
    values = {name: 100 - number for number, name in enumerate(sorted(names))}
    for name, value in values.items():
        monkeypatch.setenv(f"PURGATORY_{name.upper()}", str(value))
    limits = asdict(Settings().limits())
    assert {name: limits[name] for name in names} == values


@cases("host, address", [("127.0.0.1", "http://127.0.0.1:8000"), ("::1", "http://[::1]:8000")])
def test_the_address_is_one_to_click_on(
    monkeypatch: pytest.MonkeyPatch, host: str, address: str
) -> None:
    """That of IPv6 is in brackets (RFC 3986)."""
    monkeypatch.setenv("HOST", host)
    assert Settings().address == address
