"""`python -m tests.other_suites FOLDER`: what fails only with a purgatory in every application.

With `--protocol`: only on `ParkingProtocol`.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ET
from collections.abc import Sequence
from pathlib import Path

OURS = Path(__file__).parent
PROJECT = OURS.parents[1]
PURGATORY = "purgatory_everywhere"
PROTOCOL = "parking_protocol_everywhere"


def main(arguments: Sequence[str]) -> int:
    """Run the suite twice and print the difference; return 1 if there is one."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.other_suites",
        description=__doc__,
        epilog="Other options are pytest's, such as -k 'not trio'.",
    )
    parser.add_argument("folder", type=Path, help="a checkout, or where its tests are run")
    parser.add_argument("--python", default=sys.executable, help="has the suite's dependencies")
    parser.add_argument("--minutes", type=float, default=30, help="for each of the two runs")
    parser.add_argument(
        "--protocol",
        action="store_true",
        help="uvicorn's own suite: ParkingProtocol in place of its httptools one, and no purgatory",
    )
    given, options = parser.parse_known_args(arguments)
    results = []
    for plugins in ([], ["-p", PROTOCOL if given.protocol else PURGATORY]):
        found = run(given.python, given.folder, [*plugins, *options], given.minutes * 60)
        failed = sum(is_failed for is_failed in found.values())
        print(f"{len(found)} tests, {failed} failed {' '.join(plugins)}", flush=True)
        results.append(found)
    plain, ours = results
    more = sorted(name for name, failed in ours.items() if failed and not plain.get(name))
    fewer = sorted(plain.keys() - ours.keys())
    for name in more:
        print(f"fails only with ours: {name}")
    for name in fewer:
        print(f"is not even collected with ours: {name}")
    return 1 if more or fewer or not plain else 0


def run(python: str, folder: Path, options: Sequence[str], seconds: float) -> dict[str, bool]:
    """Return for each test whether it failed."""
    with tempfile.TemporaryDirectory() as temporary:
        report = Path(temporary) / "report.xml"
        command = [python, "-m", "pytest", "-q", "--tb=short", "-p", "no:cacheprovider"]
        command += [f"--junitxml={report}", "-o", "junit_family=xunit1", *options]
        # The suite's own folder comes first, as it may have modules of the same names as ours.
        path = os.pathsep.join(["", str(OURS), str(PROJECT)])
        subprocess.run(
            command,
            cwd=folder,
            env={**os.environ, "PYTHONPATH": path},
            timeout=seconds,
            check=False,
        )
        cases = ET.parse(report).iter("testcase")
        return {
            f"{case.get('classname')}::{case.get('name')}": (
                case.find("failure") is not None or case.find("error") is not None
            )
            for case in cases
        }


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
