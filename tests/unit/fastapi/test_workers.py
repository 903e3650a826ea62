"""How many workers a server has; tests/acceptance/test_several_workers.py starts real ones."""

from __future__ import annotations

import sys
from types import FrameType, SimpleNamespace

import pytest

from purgatory.fastapi.servers.server_process import check_workers, running_workers


def frame_of(module: str, **names: object) -> FrameType:
    """Return the frame of a function of `module` with local variables."""
    code = f"def run({', '.join(names)}):\n    return get_frame()\nframe = run(**names)"
    variables = {"__name__": module, "get_frame": lambda: sys._getframe(1), "names": names}
    exec(code, variables)
    frame = variables["frame"]
    assert isinstance(frame, FrameType)
    return frame


CONFIG = SimpleNamespace(workers=3)
FRAMES = [
    (frame_of("uvicorn._subprocess", config=CONFIG), 3),
    (frame_of("uvicorn._subprocess", config=SimpleNamespace(workers=3, should_reload=True)), 1),
    # One process, whatever WEB_CONCURRENCY has made of its configuration.
    (frame_of("uvicorn.server", self=SimpleNamespace(config=CONFIG)), 1),
    (frame_of("gunicorn.workers.base", self=SimpleNamespace(cfg=CONFIG)), 3),
    (frame_of("hypercorn.asyncio.run", config=CONFIG), 3),
    (frame_of("hypercorn.asyncio.run", config=SimpleNamespace(workers=0)), 1),
    (frame_of("granian.server.common", self=CONFIG), 3),
    # The reader's own code.
    (frame_of("shop.main", config=CONFIG, self=CONFIG), 1),
    (None, 1),
]


def test_the_code_of_servers() -> None:
    """The number is that of their own objects."""
    for frame, count in FRAMES:
        assert (
            running_workers(frame, ["uvicorn", "--workers", "9"], {"WEB_CONCURRENCY": "9"}) == count
        )


def test_the_command_line_of_granian() -> None:
    """Its spawned workers have the number nowhere else."""
    for command, environ, count in [
        ("/venv/bin/granian --interface asgi --workers 2 app:app", {}, 2),
        ("granian --workers=3 app:app", {"GRANIAN_WORKERS": "2"}, 3),
        ("granian app:app", {"GRANIAN_WORKERS": "2"}, 2),
        ("granian app:app", {"WEB_CONCURRENCY": "2"}, 1),
        # What cannot be read is for the server to refuse.
        ("granian app:app --workers", {}, 1),
        ("granian app:app --workers ²", {}, 1),
        ("manage.py --workers 8", {"GRANIAN_WORKERS": "2"}, 1),
        ("", {}, 1),
    ]:
        assert running_workers(None, command.split(), environ) == count


def test_several_are_refused_with_the_way_out() -> None:
    """The error says how many, why, and what to do."""
    argv = ["granian", "--workers", "2"]
    with pytest.raises(Exception, match=r"2 workers.*RedisSignals\(.*allow_separate_workers=True"):
        check_workers(argv, {}, allow_separate_workers=False)
    check_workers(argv, {}, allow_separate_workers=True)
    check_workers(["granian"], {}, allow_separate_workers=False)
