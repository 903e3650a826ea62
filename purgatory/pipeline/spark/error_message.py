"""The one sentence of an error of Spark that a user needs."""

from __future__ import annotations

_TRACE = "Traceback (most recent call last):"


def error_message(error: Exception) -> str:
    """Return what a Python worker died of, else the first line of what Spark says, and the cause.

    `error` is a Py4JJavaError or a PySparkException, whose text goes on with traces.
    """
    if (cause := python_cause(str(error))) is not None:
        return cause
    lines = [line.strip() for line in str(error).splitlines()]
    said = next((line for line in lines if line and "An error occurred while" not in line), "")
    causes = [line.partition(": ")[2] for line in lines if line.startswith("Caused by: ")]
    return f"Spark could not do it: {said.removeprefix(': ')} {' / '.join(causes[-1:])}".rstrip()


def python_cause(text: str) -> str | None:
    """Return the error at the end of the last Python trace in `text`; None if there is no trace.

    What Spark says of a Python worker has the cause only below the trace of calls. Of our own
    errors it is the sentence; of others, the name of the class comes before it.
    """
    _, found, trace = text.rpartition(_TRACE)
    said = next((line for line in trace.splitlines() if line[:1].strip()), None) if found else None
    if said is None:
        return None
    name, _, sentence = said.partition(": ")
    return sentence if name.startswith("purgatory.") and sentence else said
