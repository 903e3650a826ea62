"""What is installed, and what is in the repository."""

import importlib.metadata
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

import purgatory
from tests.cases import cases
from tests.nightly import NIGHTLY

ROOT = Path(__file__).parent.parent
DISTRIBUTION = "fastapi-purgatory"

REGISTRY = re.compile(
    r"\b(?:pypi|pythonhosted|npmjs|yarnpkg|debian|anaconda)\.(?:org|com|io)\b"
    r"|\bcrates\.io\b|-{2}(?:extra-)?index-url\b|-{2}find-links\b",
    re.IGNORECASE,
)
MACHINE_PATH = re.compile(r"(?<![\w.-])/(?:root|work|home/\w+|Users/\w+)/")
# The kinds of file that the library consists of; a new kind is named here on purpose.
KINDS = {
    ".css",
    ".html",
    ".js",
    ".json",
    ".lua",
    ".properties",
    ".py",
    ".svg",
    ".ts",
    ".typed",
    ".yml",
}
PIN = re.compile(r"[\w.-]+==[\w.]+(?: ; .+?)?(?: --hash=sha256:[0-9a-f]{64})+")


def test_purgatory_belongs_to_our_distribution() -> None:
    """The package that is imported is this one, and no other distribution claims its name."""
    url = importlib.metadata.distribution(DISTRIBUTION).read_text("direct_url.json")
    assert url is not None, f"{DISTRIBUTION} is not installed from here: use make test"
    assert json.loads(url)["url"] == ROOT.as_uri()
    assert Path(purgatory.__file__).parent == ROOT / "purgatory"
    owners = importlib.metadata.packages_distributions().get("purgatory", [])
    assert set(owners) <= {DISTRIBUTION}, "another distribution overwrites our files"


@pytest.mark.parametrize("module", ["purgatory", "purgatory.fastapi"])
@pytest.mark.parametrize("is_overwritten", [False, True])
def test_another_distribution_in_our_folder(
    tmp_path: Path, module: str, is_overwritten: bool
) -> None:
    """One sentence says so and names the way out, whichever of the two was installed last."""
    shutil.copytree(ROOT / "purgatory", tmp_path / "purgatory")
    (tmp_path / "purgatory" / "service" / "_async").mkdir(parents=True)
    if is_overwritten:
        (tmp_path / "purgatory" / "__init__.py").write_text("")
    command = [sys.executable, "-P", "-c", f"import {module}"]
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    is_told = "pip uninstall purgatory fastapi-purgatory" in done.stderr
    # The other's __init__ is not ours to change.
    assert is_told == (module == "purgatory.fastapi" or not is_overwritten), done.stderr


def test_the_core_needs_the_standard_library_only() -> None:
    """Every requirement belongs to an extra."""
    requirements = importlib.metadata.requires(DISTRIBUTION) or []
    assert requirements
    assert [line for line in requirements if "extra ==" not in line] == []


def _build_wheel(target: Path, **variables: str) -> Path:
    """Build a wheel from here, without the network."""
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "wheel", "-qq", "--no-index"]
    options = ["--no-deps", "--no-build-isolation", "--wheel-dir", str(target), str(ROOT)]
    subprocess.run([*pip, *options], check=True, env={**os.environ, **variables})
    [wheel] = target.iterdir()
    assert wheel.name.startswith("fastapi_purgatory-")
    return wheel


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    """A wheel of the plain form."""
    path = _build_wheel(tmp_path_factory.mktemp("wheel"), PURGATORY_PURE_PYTHON="1")
    assert path.name.endswith("-py3-none-any.whl")
    return zipfile.ZipFile(path)


@pytest.fixture(scope="module")
def wheel_files(wheel: zipfile.ZipFile) -> set[str]:
    """The names in that wheel."""
    return set(wheel.namelist())


@NIGHTLY  # Cython has translated all modules by then
def test_a_compiler_that_fails_leaves_the_plain_form(tmp_path: Path) -> None:
    """Whoever has no compiler, or a broken one, installs all the same."""
    wheel = _build_wheel(tmp_path, PURGATORY_PURE_PYTHON="0", CC="false")
    assert wheel.name.endswith("-py3-none-any.whl")


def test_an_sdist_holds_what_it_needs_and_little_else(tmp_path: Path) -> None:
    """All that a build, the tests and the pages cited by errors need."""
    code = f"from hatchling.build import build_sdist; print(build_sdist({str(tmp_path)!r}))"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)
    [sdist] = tmp_path.iterdir()
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    found = {path.relative_to(ROOT).as_posix() for path in (ROOT / "docs").rglob("*.md")}
    assert found | {"README.md", ".build/compile_core.py", "purgatory/timer/task.pxd"} <= names
    assert not {name for name in names if name.endswith((".c", ".so", ".pyc"))}
    assert sdist.stat().st_size < 2_500_000


def test_links_of_the_description_are_absolute(wheel: zipfile.ZipFile) -> None:
    """A page of a registry has no files beside it; README.md itself keeps relative ones."""
    [metadata] = [name for name in wheel.namelist() if name.endswith(".dist-info/METADATA")]
    text = wheel.read(metadata).decode()
    links = re.findall(r"\]\(([^)]+)\)", text)
    assert "Project-URL: Source, " in text
    assert len(links) == len(re.findall(r"\]\(([^)]+)\)", (ROOT / "README.md").read_text())) > 20
    assert {link for link in links if not link.startswith(("https://", "#"))} == set()


def test_the_wheel_holds_the_library_and_nothing_else(wheel_files: set[str]) -> None:
    """Neither the service nor tests nor caches are installed with it; the migrations are."""
    migrations = {
        "purgatory/jobs/" + path.relative_to(ROOT).as_posix()
        for path in (ROOT / "migrations").rglob("*")
        if path.suffix in KINDS | {".mako"}
    }
    assert migrations
    library = {
        path.relative_to(ROOT).as_posix()
        for path in (ROOT / "purgatory").rglob("*")
        if path.suffix in KINDS
    }
    about = {name for name in wheel_files if re.match(r"fastapi_purgatory-[^/]+\.dist-info/", name)}
    assert wheel_files - about == library | migrations
    assert any(name.endswith("/licenses/LICENSE") for name in about)


@cases("folder", ["app", "docs", "tests"])
def test_requirements_are_exact_files(folder: str) -> None:
    """The same commit installs the same bytes, from whatever registry pip is set up with."""
    text = re.sub(r" \\\n +", " ", (ROOT / folder / "requirements.txt").read_text())
    pins = [line for line in text.splitlines() if not line.startswith("#")]
    assert pins
    assert [line for line in pins if not PIN.fullmatch(line)] == []


def test_no_file_names_a_registry_or_a_path_of_one_machine() -> None:
    """The repository works from any registry and in any folder."""
    assert [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()[:100]}"
        for path in _files_of_the_repository()
        for number, line in enumerate(_text(path).splitlines(), 1)
        if _names_a_place(line)
    ] == []


@cases(
    "line",
    [
        "Install it from pypi{dot}org",
        "https://files.pythonhosted{dot}org/packages",
        "https://registry.npmjs{dot}org/swagger-ui",
        "-{dash}extra-index-url https://mirror.example",
        "-{dash}find-links wheels",
        "cd {slash}root/purgatory",
        "python={slash}home/somebody/bin/python",
        "file://{slash}Users/somebody/purgatory",
    ],
)
def test_registries_and_machine_paths_are_recognised(line: str) -> None:
    """The test before this one can fail."""
    assert _names_a_place(line.format(dot=".", dash="-", slash="/"))


def _names_a_place(line: str) -> bool:
    return bool(REGISTRY.search(line) or MACHINE_PATH.search(line))


def _files_of_the_repository() -> list[Path]:
    # Those that git does not know yet count too: the test is to fail before they are committed.
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    try:
        result = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True)
    except (OSError, subprocess.CalledProcessError):
        if "CI" in os.environ:
            raise
        pytest.skip("git is not installed, or this is not a clone")
    paths = [ROOT / name for name in result.stdout.split("\0") if name]
    assert ROOT / "tests" / "test_packaging.py" in paths
    return [path for path in paths if path.is_file()]


def _text(path: Path) -> str:
    content = path.read_bytes()
    return "" if b"\0" in content else content.decode()
