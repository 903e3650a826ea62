"""The command without the extra of the command line."""

from __future__ import annotations

import importlib.util
import sys

import pytest

from purgatory.__main__ import main


@pytest.fixture(autouse=True, params=[None, "typer", "httpx"])
def without_extra(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    """Nothing of it is installed, or one part only."""
    found = {request.param: importlib.util.find_spec("json")}
    monkeypatch.setattr(importlib.util, "find_spec", found.get)


@pytest.mark.parametrize("is_from_shell", [True, False])
def test_a_command_of_the_extra(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *, is_from_shell: bool
) -> None:
    """The error says what to install."""
    given = ["doctor", "bench"]
    monkeypatch.setattr(sys, "argv", ["purgatory", *(given if is_from_shell else ["-h"])])
    with pytest.raises(SystemExit) as raised:
        main(None if is_from_shell else given)
    assert raised.value.code == 2
    assert "'doctor' needs more: pip install 'fastapi-purgatory[cli]'" in capsys.readouterr().err


@pytest.mark.parametrize("option", ["-h", "--help"])
def test_help(capsys: pytest.CaptureFixture[str], option: str) -> None:
    """It names what there is."""
    with pytest.raises(SystemExit) as raised:
        main([option])
    assert raised.value.code == 0
    assert "bench" in capsys.readouterr().out


def test_no_command(capsys: pytest.CaptureFixture[str]) -> None:
    """One is needed."""
    with pytest.raises(SystemExit) as raised:
        main([])
    assert raised.value.code == 2
    assert "command" in capsys.readouterr().err
