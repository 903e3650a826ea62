"""The job `report`: writes the page, and each chart as SVG and PNG."""

from __future__ import annotations

from purgatory.pipeline.console.progress import OnProgress
from purgatory.pipeline.outcomes.outcome_table import OutcomeTable
from purgatory.pipeline.report.drawing import Chart
from purgatory.pipeline.report.findings import Findings, findings
from purgatory.pipeline.report.page import page
from purgatory.pipeline.report.time_charts import heat_map, hot_keys_chart, outcomes_chart
from purgatory.pipeline.report.wait_charts import lateness_chart, survival_chart, waits_chart
from purgatory.pipeline.spark.tables import Tables

JOB = "report"
PAGE = "report.html"
DEFAULT_TITLE = "What waited, and for how long"


def run(
    outcome_table: OutcomeTable, tables: Tables, on_progress: OnProgress, title: str = DEFAULT_TITLE
) -> str:
    """Write the report and return the path of the page.

    Raises NothingToReadError if an earlier job has not run.
    """
    found = findings(outcome_table, tables)
    drawings = charts(found)

    def fill(new: str) -> None:
        tables.folder.write_bytes(f"{new}/{PAGE}", page(found, drawings, title).encode())
        for chart in drawings:
            on_progress(f"report: {chart.name}")
            tables.folder.write_bytes(f"{new}/{chart.name}.svg", chart.paper_svg())
            tables.folder.write_bytes(f"{new}/{chart.name}.png", chart.png())

    tables.fill(JOB, fill)
    return tables.folder.at(f"{JOB}/{PAGE}").removeprefix("file:")


def charts(found: Findings) -> list[Chart]:
    """Return the charts that have data."""
    drawn = (
        outcomes_chart(found),
        waits_chart(found),
        survival_chart(found),
        heat_map(found),
        lateness_chart(found),
        hot_keys_chart(found),
    )
    return [chart for chart in drawn if chart is not None]
