"""The page of metrics, the alert rules and the dashboard: each names what there is."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]  # it has no types

from purgatory.cli.application import main
from purgatory.cli.grafana_dashboard import dashboard_json
from purgatory.metrics import catalog
from tests.cases import cases

ROOT = Path(__file__).parents[3]
ALERTS = ROOT / "purgatory/metrics/alerts.yml"
DASHBOARD = dashboard_json()
PAGE = ROOT / "docs/reference/metrics.md"
TESTS = Path(__file__).parent / "alerts_test.yml"

PROMTOOL = pytest.mark.skipif(
    shutil.which("promtool") is None, reason="needs promtool, of Prometheus"
)


@pytest.mark.parametrize(
    ("what", "text"),
    [("alerts", ALERTS.read_text()), ("grafana", DASHBOARD)],
    ids=["alerts", "grafana"],
)
def test_a_command_prints_them(what: str, text: str, capsys: pytest.CaptureFixture[str]) -> None:
    """For a file of Prometheus or of Grafana; the rules are in the wheel."""
    assert main(["monitoring", what]) == 0
    assert capsys.readouterr().out == text


def series() -> dict[str, set[str]]:
    """Return the labels of each series, by its name as Prometheus has it."""
    found: dict[str, set[str]] = {}
    for metric in catalog.METRICS:
        labels = {*metric.labels, *(() if metric.is_of_all else ("worker",))}
        if metric.type == "counter":
            found[f"{metric.name}_total"] = labels
        elif metric.type == "gauge":
            found[metric.name] = labels
        else:
            found |= {f"{metric.name}_{each}": labels for each in ("count", "sum")}
            found[f"{metric.name}_bucket"] = labels | {"le"}
    return found


def rules() -> list[dict[str, Any]]:
    groups = yaml.safe_load(ALERTS.read_text())["groups"]
    return [rule for group in groups for rule in group["rules"]]


def panels() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(DASHBOARD)["panels"]
    return found


def expressions() -> list[str]:
    targets = [target["expr"] for panel in panels() for target in panel.get("targets", ())]
    return [*targets, *(rule["expr"] for rule in rules())]


@cases("expression", sorted(set(expressions())))
def test_expressions_have_metrics_and_labels_that_exist(expression: str) -> None:
    """`job` and `instance` are Prometheus's own."""
    known = series()
    names = set(re.findall(r"\bpurgatory_\w+", expression))
    assert names and names <= known.keys(), names - known.keys()
    labels = set.union(*(known[name] for name in names)) | {"job", "instance"}
    texts = re.findall(r"\{([^}]*)\}", expression)
    used = {found for text in texts for found in re.findall(r"(\w+)\s*(?:=~|!~|!=|=)", text)}
    for text in re.findall(r"\b(?:by|without|on)\s*\(([^)]*)\)", expression):
        used |= {each.strip() for each in text.split(",")}
    assert used <= labels, used - labels


def test_every_rule_has_a_reason_and_a_severity() -> None:
    """And its name is taken once."""
    names = [rule["alert"] for rule in rules()]
    assert len(set(names)) == len(names)
    for rule in rules():
        assert rule["labels"]["severity"] in ("warning", "critical")
        assert rule["annotations"]["summary"] and rule["annotations"]["description"].endswith(".")


@PROMTOOL
def test_promtool_accepts_the_rules_and_their_tests() -> None:
    """The tests have series for which each alert fires, and for which it does not."""
    for command in (["check", "rules", str(ALERTS)], ["test", "rules", str(TESTS)]):
        checked = subprocess.run(
            ["promtool", *command], capture_output=True, text=True, check=False, cwd=TESTS.parent
        )
        assert checked.returncode == 0, checked.stdout + checked.stderr


@PROMTOOL
def test_promtool_parses_the_expressions_of_the_dashboard(tmp_path: Path) -> None:
    """As rules, with values in the place of Grafana's variables."""
    rules = [
        {"record": f"dashboard:{number}", "expr": expression.replace("$__rate_interval", "1m")}
        for number, expression in enumerate(expressions())
    ]
    file = tmp_path / "rules.yml"
    file.write_text(yaml.safe_dump({"groups": [{"name": "dashboard", "rules": rules}]}))
    checked = subprocess.run(
        ["promtool", "check", "rules", str(file)], capture_output=True, text=True, check=False
    )
    assert checked.returncode == 0, checked.stdout + checked.stderr


def test_the_dashboard_can_be_imported() -> None:
    """Any Prometheus may be chosen; panels have an id each, and overlap nowhere."""
    document = json.loads(DASHBOARD)
    assert document["uid"] and document["title"] and document["schemaVersion"] >= 36
    variables = {each["name"] for each in document["templating"]["list"]}
    used = set(re.findall(r"\$\{?(\w+)", DASHBOARD))
    assert variables <= used | {"datasource"}
    assert used <= variables | {"__rate_interval", "__all"}
    ids = [panel["id"] for panel in panels()]
    assert len(set(ids)) == len(ids)
    for panel in panels():
        if panel["type"] != "row":
            assert panel["datasource"]["uid"] == "${datasource}" and panel["targets"]
    for one, other in combinations([panel["gridPos"] for panel in panels()], 2):
        assert (
            one["x"] + one["w"] <= other["x"]
            or other["x"] + other["w"] <= one["x"]
            or one["y"] + one["h"] <= other["y"]
            or other["y"] + other["h"] <= one["y"]
        )


def test_the_page_has_every_metric() -> None:
    """As the catalog has it."""
    rows = []
    for metric in catalog.METRICS:
        name = metric.name + ("_total" if metric.type == "counter" else "")
        labels = [*metric.labels, *(() if metric.is_of_all else ("worker",))]
        written = ", ".join(f"`{label}`" for label in labels)
        rows.append(f"| `{name}` | {metric.type} | {written} | {metric.text} |")
    drawn = PAGE.read_text().partition(": begin -->\n")[2].partition("\n<!-- ")[0]
    assert drawn.splitlines()[2:] == rows
