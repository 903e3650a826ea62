"""A hatchling build hook that compiles the core, where that is possible.

The core is annotated Python which runs as it is; the `.pxd` files beside it say what Cython cannot
know. With a C compiler a wheel for this Python and platform comes out; without one, or with
PURGATORY_PURE_PYTHON=1 in the environment, the one that runs everywhere. `purgatory.timer.compiled`
tells which it was.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

# Each has a .pxd of its name.
MODULES = (
    "purgatory/timer/task.py",
    "purgatory/timer/wheel.py",
    "purgatory/timer/scheduled_call.py",
    "purgatory/timer/system_timer.py",
    "purgatory/operations/delayed_operation.py",
    "purgatory/operations/event_buffer.py",
    "purgatory/operations/wait_histograms.py",
    "purgatory/operations/watch_key.py",
    "purgatory/signals/memory.py",
    "purgatory/signals/wait_operation.py",
    "purgatory/event_loop/parking.py",
    "purgatory/pipeline/replay/load_driver.py",
)


class CompileCore(BuildHookInterface[Any]):
    """Adds extension modules to a wheel; an editable install and an sdist stay as they are."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile into a folder of its own, so that the source tree keeps running as it is."""
        if self.target_name != "wheel" or version == "editable":
            return
        if os.environ.get("PURGATORY_PURE_PYTHON", "0") not in ("", "0"):
            return
        self._folder = tempfile.TemporaryDirectory(prefix="purgatory-")
        try:
            built = compile_modules(Path(self.root), Path(self._folder.name))
        except Exception as exc:
            # Whatever is missing, the plain form is complete: slower, not poorer.
            self.app.display_warning(f"The core stays plain Python, as it was not compiled: {exc}")
            return
        build_data["pure_python"] = False
        build_data["infer_tag"] = True
        for path in built:
            name = path.relative_to(Path(self._folder.name) / "lib").as_posix()
            build_data["force_include"][str(path)] = name


def compile_modules(root: Path, folder: Path) -> list[Path]:
    """Compile MODULES under `root`, all or none, into `folder`/lib; return the files made."""
    from Cython.Build import cythonize
    from setuptools import Distribution, Extension

    previous = Path.cwd()
    os.chdir(root)
    try:
        extensions = cythonize(
            [
                Extension(
                    module[:-3].replace("/", "."),
                    [module],
                    # Python's own flags ask for debug symbols: five sixths of what is installed.
                    extra_compile_args=[] if os.name == "nt" else ["-g0"],
                )
                for module in MODULES
            ],
            build_dir=str(folder / "c"),
            compiler_directives={
                "language_level": 3,
                # The .pxd alone says what is a C type: an annotation `int` stays Python's.
                "annotation_typing": False,
                # Methods as those of the built-in types, which Python calls in less time; what
                # `inspect` and `help` then lack stands in their signatures.
                "binding": False,
                "embedsignature": True,
                "embedsignature.format": "clinic",
            },
            quiet=True,
        )
        distribution = Distribution({"name": "purgatory", "ext_modules": extensions})
        command = distribution.get_command_obj("build_ext")
        command.build_lib = str(folder / "lib")
        command.build_temp = str(folder / "temp")
        command.parallel = os.cpu_count()
        command.ensure_finalized()
        command.run()
    finally:
        os.chdir(previous)
    return sorted((folder / "lib").rglob("*.so"))
