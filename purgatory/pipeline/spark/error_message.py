"""Error messages of Spark, reduced to a sentence."""

from __future__ import annotations

from pyspark.errors import PySparkException

try:
    from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped] # it ships no types
except ModuleNotFoundError:
    # The package pyspark-client, which is for Spark Connect only, comes without py4j.
    SPARK_ERRORS: tuple[type[Exception], ...] = (PySparkException,)
else:
    SPARK_ERRORS = (Py4JJavaError, PySparkException)

_TRACE = "Traceback (most recent call last):"


def error_message(error: Exception) -> str:
    """Return the error of a Python worker, else the first line of Spark's message and the cause.

    The text of a Py4JJavaError or a PySparkException ends with traces.
    """
    if (cause := python_cause(str(error))) is not None:
        return cause
    # Errors of other engines, and of the operating system, are a sentence already.
    if not isinstance(error, SPARK_ERRORS):
        return str(error).partition("\n")[0]
    lines = [line.strip() for line in str(error).splitlines()]
    first = next((line for line in lines if line and "An error occurred while" not in line), "")
    causes = [line.partition(": ")[2] for line in lines if line.startswith("Caused by: ")]
    return f"Spark failed: {first.removeprefix(': ')} {' / '.join(causes[-1:])}".rstrip()


def python_cause(text: str) -> str | None:
    """Return the error at the end of the last Python trace in `text`; None if there is no trace.

    Of our own errors it is the message, of others the message after the name of the class.
    """
    _, found, trace = text.rpartition(_TRACE)
    lines = trace.splitlines() if found else []
    error = next((line for line in lines if line[:1].strip()), None)
    if error is None:
        return None
    name, _, message = error.partition(": ")
    return message if name.startswith("purgatory.") and message else error
