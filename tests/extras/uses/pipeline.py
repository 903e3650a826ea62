"""The command line of the pipeline; its tests have Java."""

import subprocess
import sys

for command in ("report", "replay", "schedule"):
    arguments = [sys.executable, "-m", "purgatory.pipeline", command, "--help"]
    subprocess.run(arguments, check=True, stdout=subprocess.DEVNULL)
