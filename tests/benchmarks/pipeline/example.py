"""`make example-pipeline`: a journal that was made up, and the report on it."""

from __future__ import annotations

import argparse
import shutil
import sys
from pathlib import Path

from purgatory.pipeline.__main__ import main as run_pipeline
from tests.synthetic_journal import SyntheticJournal, inject


def main() -> int:
    """Write a journal, run every job on it and tell where the report is."""
    parser = argparse.ArgumentParser(prog="make example-pipeline ARGS=...", description=__doc__)
    parser.add_argument("--operations", type=int, default=500_000)
    parser.add_argument("--output", type=Path, default=Path(".bench/example-pipeline"))
    options = parser.parse_args()
    journal, out = options.output / "journal", options.output / "out"
    shutil.rmtree(options.output, ignore_errors=True)
    sys.stderr.write(
        f"Two days of {options.operations:,} operations, with a deploy, a crash and a broken file\n"
    )
    SyntheticJournal(
        operations=options.operations,
        hours=48,
        drains=(20.0,),
        crashes=(33.5,),
        duplicate_share=0.01,
    ).write(journal)
    inject(journal, "truncated")
    return run_pipeline(["report", "--journal", str(journal), "--out", str(out.resolve())])


if __name__ == "__main__":
    sys.exit(main())
