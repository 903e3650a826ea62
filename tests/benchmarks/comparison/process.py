"""The process that is measured: its clocks, memory, garbage collector and machine."""

from __future__ import annotations

import gc
import importlib.metadata
import os
import platform
import subprocess
import sysconfig
import time
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Self

from purgatory.timer import compiled

# Throughput is measured in CPU time, which depends less on other processes.
wall_ns = time.monotonic_ns
cpu_ns = time.process_time_ns
thread_cpu_ns = time.thread_time_ns


_STATM = Path("/proc/self/statm")


def resident_bytes() -> int:
    """Return the resident size, which includes that of C libraries."""
    gc.collect()
    if _STATM.exists():
        return int(_STATM.read_text(encoding="ascii").split()[1]) * os.sysconf("SC_PAGE_SIZE")
    command = ["ps", "-o", "rss=", "-p", str(os.getpid())]
    return int(subprocess.run(command, capture_output=True, check=True).stdout) * 1024


THRESHOLD = (100_000, 50, 50)


class Collector(StrEnum):
    """The settings of the garbage collector, which is on and the same for all contenders."""

    SERVICE = "service"
    """As the service sets it and the docs advise: frozen after the start, higher thresholds."""
    PYTHON = "python"
    """Python's defaults."""

    def apply(self) -> None:
        """Set the collector of this process."""
        if self is Collector.SERVICE:
            gc.collect()
            gc.freeze()
            gc.set_threshold(*THRESHOLD)

    def description(self) -> str:
        """Return a description of the settings."""
        if self is Collector.SERVICE:
            return f"on, frozen after the start, thresholds {THRESHOLD}, as in the service"
        return f"on, thresholds {gc.get_threshold()}, as Python sets it"


class CollectorPauses:
    """Adds up the CPU time of the collector, in `total_ns`."""

    __slots__ = ("_started_ns", "total_ns")

    def __init__(self) -> None:
        self.total_ns = 0
        self._started_ns = 0

    def __enter__(self) -> Self:
        """Start counting."""
        gc.callbacks.append(self._note)
        return self

    def __exit__(self, *exc_info: object) -> None:
        """Stop counting."""
        gc.callbacks.remove(self._note)

    def _note(self, phase: str, info: dict[str, int]) -> None:
        now_ns = cpu_ns()
        if phase == "start":
            self._started_ns = now_ns
        else:
            self.total_ns += now_ns - self._started_ns


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
