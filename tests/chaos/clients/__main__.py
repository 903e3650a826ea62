"""The long form: `python -m tests.chaos.clients [SECONDS]`, 120 by default."""

import asyncio
import sys
import tempfile
from pathlib import Path

from tests.chaos.clients.storm import run_storm

with tempfile.TemporaryDirectory() as folder:
    report = asyncio.run(run_storm(float((sys.argv[1:] or ["120"])[0]), Path(folder)))
sys.stdout.write("\n".join([str(report), *report.faults, ""]))
sys.exit(bool(report.faults))
