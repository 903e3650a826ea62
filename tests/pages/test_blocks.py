"""Each code block of the docs runs, or says why it does not."""

import configparser
import importlib
import json
import os
import re
import shutil
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest

from tests.pages.blocks import DOCS, PAGES, ROOT, blocks, run_python, run_shell
from tests.pages.preludes import PRELUDES

# Languages of blocks that are run, parsed, or checked below.
RUN = {"bash", "python"}
CHECKED = {"dockerfile", "ini", "json", "nginx", "yaml"}
# Those that show a result, or a picture.
SHOWN = {"mermaid", "text"}
NEEDS_NGINX = pytest.mark.skipif(
    shutil.which("nginx") is None and "CI" not in os.environ,
    reason="needs nginx; .ci/run installs it, and CI fails without it",
)


def with_blocks(*languages: str) -> list[Path]:
    """Return the pages that have blocks of a language that are to be run."""
    return [
        page
        for page in PAGES
        if any(block.language in languages and block.reason is None for block in blocks(page))
    ]


def name(page: Path) -> str:
    return str(page.relative_to(DOCS))


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_each_block_has_a_language(page: Path) -> None:
    """And so it is run, checked or shown; one that is not run says why."""
    runnable = {block.language for block in blocks(page) if block.reason is None}
    assert runnable <= RUN | CHECKED | SHOWN
    assert page.read_text().count("\n```") == 2 * len(blocks(page))


@pytest.mark.parametrize("page", with_blocks("python"), ids=name)
def test_python_blocks_run(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In order, in one namespace."""
    monkeypatch.chdir(tmp_path)
    run_python(page, PRELUDES.get(name(page), {}))


@pytest.mark.parametrize("page", with_blocks("bash"), ids=name)
def test_shell_blocks_print_what_the_page_shows(page: Path, tmp_path: Path) -> None:
    """Against real servers on a free port."""
    for printed, shown in run_shell(page, tmp_path):
        assert printed == shown


@pytest.mark.parametrize("page", with_blocks("json"), ids=name)
def test_json_blocks_are_json(page: Path) -> None:
    """Each is one document."""
    for block in blocks(page):
        if block.language == "json":
            json.loads(block.text)


@pytest.mark.parametrize("page", with_blocks("ini"), ids=name)
def test_ini_blocks_can_be_parsed(page: Path) -> None:
    """Those without a section are for the first one of their file."""
    for block in blocks(page):
        if block.language == "ini":
            section = "" if block.text.startswith("[") else "[first]\n"
            parser = configparser.ConfigParser(interpolation=None)
            parser.read_string(section + block.text)
            assert parser.sections()


@NEEDS_NGINX
@pytest.mark.parametrize("page", with_blocks("nginx"), ids=name)
def test_nginx_accepts_its_blocks(page: Path, tmp_path: Path) -> None:
    """All blocks of a page together, within `http`."""
    texts = [block.text for block in blocks(page) if block.language == "nginx"]
    _create_certificate(tmp_path)
    configuration = tmp_path / "nginx.conf"
    configuration.write_text(
        f"pid {tmp_path}/pid;\nerror_log stderr;\nevents {{}}\n"
        f"http {{\naccess_log off;\n{temporary_paths(tmp_path)}\n{''.join(texts)}\n}}\n"
    )
    checked = subprocess.run(
        ["nginx", "-t", "-p", str(tmp_path), "-c", str(configuration)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert checked.returncode == 0, checked.stderr


def temporary_paths(folder: Path) -> str:
    kinds = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    return "\n".join(f"{kind}_temp_path {folder}/{kind};" for kind in kinds)


def _create_certificate(folder: Path) -> None:
    command = "openssl req -x509 -newkey rsa:2048 -nodes -days 1 -subj /CN=localhost"
    files = ["-keyout", "key.pem", "-out", "cert.pem"]
    subprocess.run([*command.split(), *files], cwd=folder, check=True, capture_output=True)


CONTAINERS = DOCS / "how-to" / "containers.md"


def test_the_files_of_the_images_exist() -> None:
    """What is copied from a checkout is in it, and the extras that are installed are ours."""
    texts = [block.text for block in blocks(CONTAINERS) if block.language == "dockerfile"]
    own, service = texts
    known = {"FROM", "RUN", "COPY", "WORKDIR", "USER", "EXPOSE", "CMD", "ENV", "VOLUME"}
    for text in texts:
        assert {line.split()[0] for line in text.splitlines() if line} <= known
        [command] = re.findall(r"^CMD (.*)$", text, re.MULTILINE)
        # As a list: a shell would keep the signal.
        assert all(isinstance(word, str) for word in json.loads(command))
    copied = [
        word for line in re.findall(r"^COPY (.*) \S+$", service, re.M) for word in line.split()
    ]
    assert [path for path in copied if not (ROOT / path).exists()] == []
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"][
        "optional-dependencies"
    ]
    named = re.findall(r"\[(\w+)\]'", own + service)
    assert named and set(named) <= extras.keys()


def test_the_composition_is_of_settings_that_exist() -> None:
    """YAML, with variables that the service reads and paths that it has."""
    yaml: Any = importlib.import_module("yaml")  # It has no types.
    [text] = [block.text for block in blocks(CONTAINERS) if block.language == "yaml"]
    document = yaml.safe_load(text)
    service = document["services"]["purgatory"]
    settings = (ROOT / "docs" / "reference" / "service.md").read_text()
    assert all(f"`{variable}`" in settings for variable in service["environment"])
    assert set(service["secrets"]) == document["secrets"].keys()
    assert [volume.split(":")[0] for volume in service["volumes"]] == [*document["volumes"]]
