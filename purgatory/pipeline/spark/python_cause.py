"""What a Python process of Spark died of."""

from __future__ import annotations

_TRACE = "Traceback (most recent call last):"


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
