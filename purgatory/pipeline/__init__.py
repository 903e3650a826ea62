"""Jobs over the history of operations, on Spark and DuckDB: from outcomes to a report and replay.

`python -m purgatory.pipeline` runs them. Each is also a function from DataFrames to a DataFrame.
The rooms: `source` (tables of Spark), `sql` (the rules of the tables), `outcomes`, `rollups`,
`advise`, `report`, `replay`, `schedule`, on `spark`, `statistics` and `console`; `cli` has the
commands. What runs in a service, such as writing the journal, is not here.
"""

import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

try:
    import duckdb  # noqa: F401 - for the error
    import pyarrow as pa  # noqa: F401 - for the error
except ImportError as exc:
    sentence = f"purgatory.pipeline needs {exc.name}: pip install 'fastapi-purgatory[report]'"
    # So it is while `python -m` looks for __main__: a command has a sentence, and no traceback.
    if sys.argv[:1] == ["-m"]:
        sys.exit(sentence)
    raise ImportError(sentence) from exc

from purgatory.pipeline.errors import (
    BadFileError,
    NoJavaError,
    NothingToReadError,
    OutputInUseError,
    PipelineError,
    RefusedRowsError,
)
from purgatory.pipeline.outcomes.journal_files import OnBadFile
from purgatory.pipeline.outcomes.outcome_table import OutcomeTable
from purgatory.pipeline.replay.loads import Growth, SyntheticLoad, WhatIf
from purgatory.pipeline.spark.session import spark_session

if TYPE_CHECKING:
    from purgatory.pipeline.replay.replay import replay_outcomes, replay_synthetic
    from purgatory.pipeline.replay.summary import replay_by_shard, replay_by_time, replay_summary
    from purgatory.pipeline.source import register
    from purgatory.pipeline.source.jobs_source import job_events
    from purgatory.pipeline.spark.schemas import EVENT_SCHEMA
    from purgatory.pipeline.sql.spark import operation_outcomes

# The modules of the names above, which need Spark: without them it need not be installed, and is
# not imported, which takes longer than a report on little.
_ON_SPARK = (
    *("replay.replay", "replay.summary", "source.jobs_source", "source", "spark.schemas"),
    "sql.spark",
)

__all__ = [
    "EVENT_SCHEMA",
    "BadFileError",
    "Growth",
    "NoJavaError",
    "NothingToReadError",
    "OnBadFile",
    "OutcomeTable",
    "OutputInUseError",
    "PipelineError",
    "RefusedRowsError",
    "SyntheticLoad",
    "WhatIf",
    "job_events",
    "operation_outcomes",
    "register",
    "replay_by_shard",
    "replay_by_time",
    "replay_outcomes",
    "replay_summary",
    "replay_synthetic",
    "spark_session",
]


def __getattr__(name: str) -> Any:
    """Return a public name that needs Spark."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        modules = [import_module(f"{__name__}.{module}") for module in _ON_SPARK]
    except ImportError as exc:
        raise ImportError(
            f"purgatory.pipeline.{name} needs {exc.name}: pip install 'fastapi-purgatory[pipeline]'"
        ) from exc
    found = next(module for module in modules if name in vars(module))
    return vars(found)[name]
