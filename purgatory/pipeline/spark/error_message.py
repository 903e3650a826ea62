"""What a person can make of an error of Spark's."""

from __future__ import annotations

from purgatory.pipeline.spark.python_cause import python_cause


def sentence_of(error: Exception) -> str:
    """Return what a Python worker died of, else the first line of what Spark says, and the cause.

    `error` is a Py4JJavaError or a PySparkException, whose text goes on with traces.
    """
    if (cause := python_cause(str(error))) is not None:
        return cause
    lines = [line.strip() for line in str(error).splitlines()]
    said = next((line for line in lines if line and "An error occurred while" not in line), "")
    causes = [line.partition(": ")[2] for line in lines if line.startswith("Caused by: ")]
    return f"Spark could not do it: {said.removeprefix(': ')} {' / '.join(causes[-1:])}".rstrip()
