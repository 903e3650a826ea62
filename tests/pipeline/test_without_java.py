"""What Spark Connect has not: no module of the pipeline reaches for Java or a SparkContext."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tests.house.imports import ROOT

_FORBIDDEN = {
    *("_jvm", "_jsc", "_sc", "_jsparkSession", "_jdf", "_jc", "_jreader", "_jwrite"),
    *("sparkContext", "SparkContext", "SQLContext", "rdd", "RDD", "toJavaRDD"),
}
_FILES = sorted((ROOT / "purgatory" / "pipeline").rglob("*.py"))


def names(source: str) -> set[str]:
    """Return all attributes, names and imported names of a module."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Attribute):
            found.add(node.attr)
        elif isinstance(node, ast.Name):
            found.add(node.id)
        elif isinstance(node, ast.alias):
            found.add(node.name.rpartition(".")[2])
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            found.add(node.value)  # As of getattr.
    return found


@pytest.mark.parametrize("path", _FILES, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_no_module_needs_a_jvm_or_a_spark_context(path: Path) -> None:
    """Sessions of Spark Connect have neither, so a single use would break it."""
    assert names(path.read_text(encoding="utf-8")) & _FORBIDDEN == set()


def test_the_check_finds_what_it_looks_for() -> None:
    """Attributes, imports and names given as text."""
    assert names("spark._jvm.org") & _FORBIDDEN == {"_jvm"}
    assert names("from pyspark import SparkContext") & _FORBIDDEN == {"SparkContext"}
    assert names("getattr(frame, 'rdd')") & _FORBIDDEN == {"rdd"}
