"""Write the operations of the service's OpenAPI document as Markdown: `make docs` calls this.

python .build/operations_page.py build/docs/operations.md
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent


def operations_page(document: dict[str, Any]) -> str:
    """Return a section for each operation: its parameters, its body and its responses."""
    return "\n".join(
        line
        for path, operations in document["paths"].items()
        for method, operation in operations.items()
        for line in _section(method, path, operation)
    )


def _section(method: str, path: str, operation: dict[str, Any]) -> list[str]:
    lines = [f"## {operation['summary']}", "", f"`{method.upper()} {path}`", ""]
    lines += [operation.get("description", ""), ""]
    if parameters := operation.get("parameters"):
        lines += ["| parameter | in | meaning |", "|---|---|---|"]
        for parameter in parameters:
            name, place = parameter["name"], parameter["in"]
            lines.append(f"| `{name}` | {place} | {_cell(parameter.get('description', ''))} |")
        lines.append("")
    if body := operation.get("requestBody"):
        lines += [f"Body: {', '.join(map(_content, body['content'].items()))}.", ""]
    lines += ["| status | meaning |", "|---|---|"]
    for status, response in operation["responses"].items():
        if status != "default":
            lines.append(f"| {status} | {_cell(response['description'])} |")
    return [*lines, ""]


def _content(item: tuple[str, dict[str, Any]]) -> str:
    media_type, content = item
    name = content.get("schema", {}).get("$ref", "").rpartition("/")[2]
    return f"`{media_type}`" + (f" (`{name}`)" if name else "")


def _cell(text: str) -> str:
    return " ".join(text.replace("|", "\\|").split())


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    from app.main import create_app
    from app.settings import Settings

    target = Path(sys.argv[1])
    target.parent.mkdir(parents=True, exist_ok=True)
    application = create_app(Settings(jobs_url="memory://"))
    target.write_text(operations_page(application.openapi()), encoding="utf-8")
