"""Jobs over the history of operations, on Spark: outcomes, waits, advice and a report.

`python -m purgatory.pipeline` runs them. Each is also a function from DataFrames to a DataFrame.
"""

from purgatory.pipeline.advice import Advice, Wishes, advise
from purgatory.pipeline.bad_files import OnBadFile
from purgatory.pipeline.errors import (
    BadFileError,
    NoJavaError,
    NothingToReadError,
    OutputInUseError,
    PipelineError,
)
from purgatory.pipeline.outcome_table import OutcomeTable, Update
from purgatory.pipeline.outcomes import outcomes
from purgatory.pipeline.parked import parked
from purgatory.pipeline.percentiles import percentiles
from purgatory.pipeline.schema import EVENT_SCHEMA, OUTCOME_SCHEMA
from purgatory.pipeline.session import spark_session
from purgatory.pipeline.survival import kaplan_meier
from purgatory.pipeline.waits import hot_keys, waits_by

__all__ = [
    "EVENT_SCHEMA",
    "OUTCOME_SCHEMA",
    "Advice",
    "BadFileError",
    "NoJavaError",
    "NothingToReadError",
    "OnBadFile",
    "OutcomeTable",
    "OutputInUseError",
    "PipelineError",
    "Update",
    "Wishes",
    "advise",
    "hot_keys",
    "kaplan_meier",
    "outcomes",
    "parked",
    "percentiles",
    "spark_session",
    "waits_by",
]
