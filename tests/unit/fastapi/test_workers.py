"""How many workers a server was asked for."""

from __future__ import annotations

import pytest

from purgatory.errors import SeveralWorkersError
from purgatory.fastapi.servers.workers import check_workers, declared_workers

COMMANDS = {
    "/venv/bin/uvicorn app:app": 1,
    "/venv/bin/uvicorn app:app --workers 2": 2,
    "/venv/bin/uvicorn --workers=3 app:app": 3,
    "/venv/bin/uvicorn app:app --workers 1": 1,
    "/usr/lib/python3/site-packages/uvicorn/__main__.py app:app --workers 4": 4,
    "/venv/bin/gunicorn -w 4 -k uvicorn.workers.UvicornWorker app:app": 4,
    "/venv/bin/gunicorn -w4 app:app": 4,
    "/venv/bin/gunicorn --workers 2 --worker-class uvicorn.workers.UvicornWorker app:app": 2,
    "/venv/bin/gunicorn --worker-class uvicorn.workers.UvicornWorker --worker-tmp-dir 8 app": 1,
    "/venv/bin/hypercorn -w 2 app:app": 2,
    "/venv/bin/hypercorn --workers 1 app:app": 1,
    "/venv/bin/granian --interface asgi --workers 2 app:app": 2,
    "/venv/bin/fastapi run --workers 2 app.py": 2,
    "/venv/bin/fastapi dev app.py": 1,
    # What cannot be read is for the server to refuse.
    "/venv/bin/uvicorn app:app --workers": 1,
    "/venv/bin/uvicorn app:app --workers many": 1,
    "/venv/bin/uvicorn app:app --workers ²": 1,
    # Another program's -w may mean anything.
    "/venv/bin/pytest -w 8": 1,
    "manage.py --workers 8": 1,
    "": 1,
}


@pytest.mark.parametrize(("command", "count"), COMMANDS.items())
def test_the_command_line(command: str, count: int) -> None:
    """The option of each server, in all its spellings."""
    assert declared_workers(command.split(), {}) == count


@pytest.mark.parametrize(
    ("command", "environ", "count"),
    [
        ("uvicorn app:app", {"WEB_CONCURRENCY": "2"}, 2),
        ("gunicorn app:app", {"WEB_CONCURRENCY": "2"}, 2),
        ("uvicorn app:app", {"UVICORN_WORKERS": "2"}, 2),
        ("granian app:app", {"GRANIAN_WORKERS": "2"}, 2),
        ("uvicorn app:app", {"UVICORN_WORKERS": "1", "WEB_CONCURRENCY": "2"}, 1),
        ("uvicorn app:app", {"GRANIAN_WORKERS": "2"}, 1),
        ("uvicorn app:app --workers 1", {"WEB_CONCURRENCY": "2"}, 1),
        ("uvicorn app:app --workers 3", {"UVICORN_WORKERS": "2"}, 3),
        ("uvicorn app:app", {"WEB_CONCURRENCY": ""}, 1),
        ("uvicorn app:app", {"WEB_CONCURRENCY": "auto"}, 1),
        ("uvicorn app:app", {}, 1),
        ("", {"WEB_CONCURRENCY": "2"}, 2),
    ],
)
def test_the_environment(command: str, environ: dict[str, str], count: int) -> None:
    """What stands on the command line comes before the environment."""
    assert declared_workers(command.split(), environ) == count


def test_several_are_refused_with_the_way_out() -> None:
    """The error says how many, why, and what to do."""
    with pytest.raises(SeveralWorkersError, match=r"2 workers.*allow_separate_workers=True"):
        check_workers(["uvicorn", "--workers", "2"], {}, allow_separate_workers=False)


def test_several_are_allowed_by_name_and_one_always() -> None:
    """Nothing is raised."""
    check_workers(["uvicorn", "--workers", "2"], {}, allow_separate_workers=True)
    check_workers(["uvicorn"], {}, allow_separate_workers=False)
