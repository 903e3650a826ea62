"""The format of the service's log: one line for each record, whatever it contains."""

from __future__ import annotations

import logging
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.log_format import ACCESS_LINE, LINE, AccessLineFormatter, LineFormatter
from purgatory.printable import printable

FORGED = "x\n2026-11-21T15:04:05.678Z INFO:     all is well\x1b[2K\u2028\u202e"


def record(message: str, *args: object) -> logging.LogRecord:
    return logging.LogRecord("purgatory", logging.ERROR, __file__, 1, message, args, None)


@given(st.text())
def test_a_line_contains_no_control_characters(text: str) -> None:
    """Neither line ends nor escape sequences nor marks that change the direction of text."""
    shown = printable(text)
    assert shown.isprintable()
    assert shown == text or not text.isprintable()


def test_a_message_is_one_line() -> None:
    """With what clients chose in it."""
    formatter = LineFormatter(LINE, use_colors=False)
    line = formatter.format(record("job %s failed", FORGED))
    assert line.isprintable()
    assert r"x\n2026-11-21" in line and r"\x1b[2K\u2028\u202e" in line


def test_an_access_line_is_one_line() -> None:
    """Also if a proxy forwards nonsense as the address."""
    formatter = AccessLineFormatter(ACCESS_LINE, use_colors=False)
    line = formatter.format(record('%s - "%s %s HTTP/%s" %d', FORGED, "GET", FORGED, "1.1", 200))
    assert line.isprintable()


def test_a_traceback_forges_no_line() -> None:
    """Its lines are indented, those of the exception's own text as well."""
    formatter = LineFormatter(LINE, use_colors=False)
    failed = record("a job failed")
    try:
        raise ValueError(FORGED)
    except ValueError:
        failed.exc_info = sys.exc_info()
    first, *others = formatter.format(failed).split("\n")
    assert first.endswith("a job failed")
    assert others and all(line.startswith("    ") and line.isprintable() for line in others)


def test_settings_of_callbacks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hosts and secrets; a wrong value is not repeated."""
    from app.settings import Settings

    monkeypatch.setenv("PURGATORY_CALLBACK_ALLOWED_HOSTS", "hooks.internal, build:8080")
    valid = '{"billing": {"value": "Bearer hunter2", "hosts": ["billing.example"]}}'
    monkeypatch.setenv("PURGATORY_CALLBACK_SECRETS", valid)
    assert Settings().webhook() is not None
    for wrong in (
        "hunter2",
        '{"billing": "hunter2"}',
        '["hunter2"]',
        '{"billing": {"value": "hunter2"}}',
        '{"billing": {"value": "hunter2\\n", "hosts": ["a.example"]}}',
        '{"billing": {"value": 2, "hosts": ["a.example"]}}',
        '{"billing": {"value": "hunter2", "hosts": "a.example"}}',
        '{"billing": {"value": "hunter2", "hosts": ["http://a.example"]}}',
    ):
        monkeypatch.setenv("PURGATORY_CALLBACK_SECRETS", wrong)
        with pytest.raises(ValueError, match="PURGATORY_CALLBACK_SECRETS") as caught:
            Settings().webhook()
        assert "hunter2" not in str(caught.value)
