"""The machine and the versions that figures were measured on."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import sysconfig
from dataclasses import dataclass
from pathlib import Path

from purgatory.timer import compiled
from tests.benchmarks.comparison.collector import Collector

_CPUINFO = Path("/proc/cpuinfo")


@dataclass(frozen=True, slots=True)
class Machine:
    """The machine and the versions of a run."""

    form: str
    """Of the core: "compiled" or "plain"."""
    python: str
    uvloop: str
    system: str
    processor: str
    cores: int
    load: str
    """Of the last 1, 5 and 15 minutes, when the run began."""
    collector: str

    @property
    def is_busy(self) -> bool:
        """Whether other processes were running, so that figures vary."""
        return float(self.load.split()[0]) > 0.5


def this_machine(collector: Collector) -> Machine:
    """Return the machine and the versions of this process."""
    return Machine(
        form="compiled" if compiled else "plain",
        python=_python(),
        uvloop=_version("uvloop"),
        system=f"{platform.system()} {platform.release()} {platform.machine()}",
        processor=_processor(),
        cores=os.cpu_count() or 1,
        load=" ".join(f"{load:.1f}" for load in os.getloadavg()),
        collector=collector.description(),
    )


def _python() -> str:
    # A build with profile-guided optimisation is a quarter faster.
    is_optimized = "--enable-optimizations" in (sysconfig.get_config_var("CONFIG_ARGS") or "")
    kind = "optimised" if is_optimized else "not optimised by profile"
    return f"{platform.python_implementation()} {platform.python_version()} ({kind})"


def _version(distribution: str) -> str:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


def _processor() -> str:
    if _CPUINFO.exists():
        for line in _CPUINFO.read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
