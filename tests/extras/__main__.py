"""Install the wheel with one extra after another into empty environments, and use the extra.

Needs the network: what an extra lacks is found only where nothing else is installed.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import tomllib
import venv
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
USES: Final = Path(__file__).parent / "uses"
CORE: Final = "core"


def main() -> int:
    """Return 0 iff every extra that was asked for can be used."""
    names = [CORE, *extras()]
    parser = argparse.ArgumentParser(prog="make test-extras ARGS=...", description=__doc__)
    parser.add_argument("extra", nargs="*", help=f"default: all of {', '.join(names)}")
    chosen = parser.parse_args().extra or names
    if unknown := set(chosen) - set(names):
        parser.error(f"there is no extra {min(unknown)!r}: {', '.join(names)}")
    with tempfile.TemporaryDirectory(prefix="purgatory-extras-") as folder:
        wheel = build_wheel(Path(folder) / "wheel")
        failed = [name for name in chosen if not can_be_used(name, wheel, Path(folder) / name)]
    sys.stdout.write(f"{len(chosen) - len(failed)} of {len(chosen)} extras can be used\n")
    return 1 if failed else 0


def extras() -> list[str]:
    """Return the extras of the wheel, without the one that has all others."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return [name for name in project["optional-dependencies"] if name != "all"]


def build_wheel(folder: Path) -> Path:
    """Return a wheel of the plain form, which is built in `folder`."""
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "wheel", "-qq"]
    options = ["--no-deps", "--no-build-isolation", "--wheel-dir", str(folder), str(ROOT)]
    subprocess.run(
        [*command, *options], check=True, env={**os.environ, "PURGATORY_PURE_PYTHON": "1"}
    )
    [wheel] = folder.iterdir()
    return wheel


def can_be_used(extra: str, wheel: Path, folder: Path) -> bool:
    """Return True iff the program for an extra succeeds where nothing else is installed."""
    # Without a pip of its own, which takes longer to install than the core: ours installs there.
    venv.create(folder, with_pip=False)
    python = str(folder / "bin" / "python")
    wanted = str(wheel) if extra == CORE else f"{wheel}[{extra}]"
    pip = [sys.executable, "-m", "pip", "--python", python, "--disable-pip-version-check"]
    is_usable = (
        subprocess.run([*pip, "--no-input", "install", "-qq", wanted], check=False).returncode == 0
        and (
            # Outside the repository, whose sources would be imported in place of the wheel.
            subprocess.run([python, "-I", str(USES / f"{extra}.py")], cwd=folder, check=False)
        ).returncode
        == 0
    )
    sys.stdout.write(f"{extra}: {'passed' if is_usable else 'FAILED'}\n")
    sys.stdout.flush()
    return is_usable


if __name__ == "__main__":
    sys.exit(main())
