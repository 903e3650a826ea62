"""The page on the tables says what there is, and others read them as it says."""

from __future__ import annotations

import json
import re
from pathlib import Path

import duckdb
import pytest
from pyspark.sql import SparkSession

from purgatory.pipeline.__main__ import main
from tests.pages.blocks import DOCS
from tests.pipeline.synthetic import TABLES, Written, write

NOTEBOOK = DOCS / "pipeline" / "results.ipynb"
PAGE = (DOCS / "pipeline" / "tables.md").read_text(encoding="utf-8")
SQL = re.findall(r"(?s)```sql\n(.+?)```", PAGE)
LIKE_KINDS = {"by_key_prefix": {"key_prefix"}, "by_hour": {"kind", "hour"}, "polls": {"kind"}}


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> tuple[Written, Path]:
    """A journal with labels, and the folder `results` beside it."""
    folder = tmp_path_factory.mktemp("tables")
    written = write(folder / "journal", operations=2_000, hours=2.0, tenants=2)
    out = folder / "results"
    assert main(["waits", "--journal", str(written.folder), "--out", str(out)]) == 0
    return written, out


def documented() -> list[dict[str, str]]:
    """Return the columns of the page's tables, with their types."""
    tables: list[dict[str, str]] = []
    for line in PAGE.splitlines():
        if line == "| column | type | meaning |":
            tables.append({})
        elif tables and (row := re.match(r"\| (`[a-z].+?) \| ([A-Z][^|]+) \|", line)):
            tables[-1] |= dict.fromkeys(re.findall(r"`(\w+)`", row[1]), row[2])
    return tables


def described(place: str) -> dict[str, str]:
    """Return the columns of files, with their types."""
    query = f"DESCRIBE FROM read_parquet('{place}', hive_partitioning = true)"
    return {name: kind for name, kind, *_ in duckdb.execute(query).fetchall()}


def test_each_table_has_the_columns_of_the_page(results: tuple[Written, Path]) -> None:
    """By name and type."""
    outcomes, by_kind, hot_keys, parked, counts = documented()
    out = results[1]
    assert described(f"{out}/outcomes/date=*/hour=*/*.parquet") == outcomes
    for name in TABLES:
        assert f"`{name}`" in PAGE
        found = described(f"{out}/waits/{name}/*.parquet")
        if name in ("timeline", "wait_counts", "lateness_counts"):
            assert found.items() <= counts.items()
        elif name in LIKE_KINDS:
            assert found.keys() - by_kind.keys() == LIKE_KINDS[name] - {"kind"}
            gone = {column.partition("_")[0] for column in by_kind.keys() - found.keys()}
            assert gone - {"kind"} == {"timeout"} | ({"lateness"} if name == "polls" else set())
        else:
            assert found == {"by_kind": by_kind, "hot_keys": hot_keys, "parked": parked}[name]


def test_duckdb_reads_them_as_views(
    results: tuple[Written, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the statements of the page."""
    written, out = results
    monkeypatch.chdir(out.parent)
    with duckdb.connect() as connection:
        rows = connection.execute(SQL[0]).fetchall()
        count = connection.execute("SELECT count(*) FROM outcomes").fetchall()
        kinds = connection.execute("SELECT count(*) FROM by_kind").fetchall()
    assert {tenant for tenant, _ in rows} == {"t0", "t1"}
    assert count == [(written.truth.operations,)] and kinds == [(len(written.truth.kinds),)]


def test_the_notebook_runs(
    results: tuple[Written, Path],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Its cells, in order, where `results` is; each query prints a table."""
    monkeypatch.chdir(results[1].parent)
    notebook = json.loads(NOTEBOOK.read_text(encoding="utf-8"))
    cells = ["".join(cell["source"]) for cell in notebook["cells"] if cell["cell_type"] == "code"]
    namespace: dict[str, object] = {}
    for cell in cells:
        exec(cell, namespace)
    printed = capsys.readouterr().out
    assert printed.count("┌") == sum(".show()" in cell for cell in cells)
    assert all(name in printed for name in ("share_expired", "t0", "t1", "completed_by"))


def test_spark_registers_them_as_a_hive_table(
    spark: SparkSession, results: tuple[Written, Path], tmp_path: Path
) -> None:
    """By the statement of the page but for the words of Hive's own grammar, with all partitions."""
    written, out = results
    columns = re.search(r"(?s)\((.+?\))", SQL[1].replace("\n", " "))
    assert columns is not None
    fields = f"{columns[1].removesuffix(')')}, `date` string, `hour` string"
    spark.sql(
        f"CREATE TABLE outcomes_of_page ({fields}) USING PARQUET PARTITIONED BY (`date`, `hour`) "
        f"LOCATION '{out}/outcomes/'"
    )
    try:
        spark.sql("MSCK REPAIR TABLE outcomes_of_page")
        found = spark.sql(
            "SELECT hour, count(*) AS n FROM outcomes_of_page GROUP BY hour"
        ).collect()
    finally:
        spark.sql("DROP TABLE outcomes_of_page")
    assert {row["hour"] for row in found} == {"06", "07"}
    assert sum(row["n"] for row in found) == written.truth.operations
