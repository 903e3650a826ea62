"""What docs/security.md says of each scope is what the other tests of this folder check."""

from __future__ import annotations

from pathlib import Path

from tests.security.permissions import ANONYMOUS, CASES, DEFER_AND_WAIT, Case
from tests.security.victims_world import create_service, operations

PAGE = Path(__file__).parents[2] / "docs/security.md"
HEAD = """\
| request | to | `wait:P*` | `fire:P*` | `observe` | `operate` | `defer` | `defer:P*` | `*` | \
others |
|---|---|---|---|---|---|---|---|---|---|
"""
# The scopes of a column, with the victim's prefix and with another one.
COLUMNS = (
    ("wait:victim:*", "wait:low:*"),
    ("fire:victim:*", "fire:low:*"),
    ("observe", "observe"),
    ("operate", "operate"),
    ("defer", "defer"),
    ("defer:victim-*", "defer:low-*"),
    ("*", "*"),
)


def _cell(case: Case, scope: str, other: str) -> str:
    if scope in case.allowed:
        return "yes" if other in case.allowed else "its keys"
    if scope == "operate" and case.allowed == {"*"}:
        return "with `fire:P*` or `defer`"
    if scope.startswith("defer") and case.allowed == DEFER_AND_WAIT:
        return "with `wait:P*`"
    return "no"


def _of_others(case: Case) -> str:
    if case.changes:
        return "reads, changes"
    return "reads" if case.sees else "nothing"


def _rows() -> list[str]:
    found = operations(create_service())
    rows = []
    for case in CASES:
        if case.is_documented:
            # A batch has a job in each line.
            names = (
                [case.operation, "add_jobs"] if case.operation == "add_job" else [case.operation]
            )
            request = ", ".join(
                f"`{method} {path.replace('/purgatory', '{p}', 1)}`"
                for method, path, _ in map(found.__getitem__, names)
            )
            cells = [_cell(case, *column) for column in COLUMNS]
            if case.allowed.issuperset(ANONYMOUS):
                cells = ["also without a token", *cells[1:]]
            rows.append(" | ".join([f"| {request}", case.name, *cells, _of_others(case)]) + " |\n")
    return rows


def test_the_table_of_scopes() -> None:
    """It is drawn from the table of permissions: copy it from the failure of this test."""
    text = PAGE.read_text(encoding="utf-8")
    begin, _, rest = text.partition("test_documentation.py: begin -->\n")
    drawn, end, _ = rest.partition("<!-- drawn by tests/security/test_documentation.py: end")
    assert begin and end
    assert drawn == HEAD + "".join(_rows())
