"""The dashboard to import into Grafana: `purgatory monitoring grafana`.

Made here, since all panels of a kind differ in their title, unit and expressions only.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from string import ascii_uppercase
from typing import Any, Final

_WIDTH: Final = 24
_DATASOURCE: Final = {"type": "prometheus", "uid": "${datasource}"}
_LINES: Final = {
    "legend": {"displayMode": "list", "placement": "bottom"},
    "tooltip": {"mode": "multi", "sort": "desc"},
}
_OPTIONS: Final = {
    "stat": {
        "reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False},
        "colorMode": "value",
        "graphMode": "area",
    },
    "heatmap": {
        "calculate": False,
        "yAxis": {"unit": "s"},
        "color": {"mode": "scheme", "scheme": "Oranges"},
        "cellGap": 1,
    },
}

_ROWS: Final = """\
# Now
Parked | stat short | sum parked
  Requests and other operations that wait.
Of the limit | stat percentunit | fill parked{limit="max_parked"} as of max_parked
  The fullest worker; at 100 % clients get 503.
Workers ready | stat short | sum ready
Fires | stat reqps | rate fires_total
Jobs waiting | stat short | max jobs{state="waiting"} as waiting
  In the store; every worker reports the same.
Jobs failed | stat short | max jobs{state="failed"} as failed

# Waits
Parked by worker | stacked short | sum parked by instance, worker
Waits that end, by outcome | stacked reqps | rate waits_total by outcome
Refused, by limit | lines reqps | rate refused_total by limit
How long waits took until they fired | heatmap s | \
increase wait_seconds_bucket{outcome="fired"} by le
Time until fired, by kind | lines s | quantiles wait_seconds_bucket{outcome="fired"} by kind
Keys and watches | lines short | sum keys; sum watches

# Time
Lateness of deadlines | lines s | quantiles lateness_seconds_bucket
  Less than a tick, plus what blocks the event loop.
Longest turn of expirations | lines s | max longest_turn_seconds by instance, worker
Wake-ups | lines ops | rate wake_ups_total as wake-ups
Timing wheel | stacked short | sum wheel_timers by level as level {{level}}
  Timers by level; 0 is the finest.

# Signals
Signals kept | lines short | sum signals by instance, worker
Bytes kept | lines bytes | sum signal_bytes by instance, worker
Lag behind the log, by shard | lines short | max signals_lag by shard as shard {{shard}}
Gaps and reconnects | lines short | increase signals_gaps_total by shard as gaps {{shard}}; \
increase signals_reconnects_total by shard as reconnects {{shard}}

# Jobs
Jobs by state | lines short | max jobs by state; max jobs_blocked as blocked
  In the store; every worker reports the same. Blocked are jobs that are due and wait for a slot \
or for the end of a pause; they are also counted in their state.
Jobs that wait and run, by handler | lines short | max handler_jobs by handler, state; \
max handler_jobs_blocked by handler, blocked_by as {{handler}} blocked by {{blocked_by}}
  Counted in stores in memory and, up to 100,000 jobs that wait or run, on SQL and Redis. Blocked \
are also counted in their state.
Jobs that end, by handler and state | stacked ops | rate jobs_ended_total by handler, state
Lateness of jobs | lines s | quantiles job_lateness_seconds_bucket
Held, running, due | lines short | \
sum jobs_held as held; sum jobs_running as running; sum jobs_due as due
Retries, put off, released | lines ops | rate job_retries_total as retries; \
rate jobs_put_off_total as put off; rate jobs_released_total as released
Leases lost, recovered, outages | lines short | increase job_leases_lost_total as leases lost; \
increase jobs_recovered_total as recovered; increase job_store_outages_total as outages
"""
"""Rows of panels, TITLE | KIND UNIT | SERIES; SERIES. Indented below is what a panel means.

A series is FUNCTION METRIC{LABELS} by LABELS as LEGEND, of which all after the metric may be left
out. Of the functions, rates and increases are summed, quantiles are the median and the 99th
percentile, and fill is the greatest share of a limit.
"""

_PANEL: Final = re.compile(r"(.+?) \| (\w+) (\w+) \| (.+)(?:\n  (.+))?")
_SERIES: Final = re.compile(r"(\w+) (\w+)(?:\{(.*)\})?(?: by ([\w, ]+?))?(?: as (.+))?")
_SELECTED: Final = 'job=~"$job",instance=~"$instance"'


def dashboard_json() -> str:
    """Return the dashboard, as Grafana imports it."""
    return json.dumps(_dashboard(), indent=2) + "\n"


def _dashboard() -> dict[str, Any]:
    selected = 'purgatory_info{job=~"$job"}'
    return {
        "title": "Purgatory",
        "uid": "purgatory",
        "tags": ["purgatory"],
        "schemaVersion": 39,
        "version": 1,
        "editable": True,
        "refresh": "30s",
        "time": {"from": "now-1h", "to": "now"},
        "timezone": "",
        "templating": {
            "list": [
                {
                    "name": "datasource",
                    "label": "datasource",
                    "type": "datasource",
                    "query": "prometheus",
                },
                _variable("job", "label_values(purgatory_info, job)"),
                _variable("instance", f"label_values({selected}, instance)"),
            ]
        },
        "annotations": {"list": []},
        "panels": [{"id": number, **panel} for number, panel in enumerate(_placed(), start=1)],
    }


def _variable(name: str, query: str) -> dict[str, Any]:
    return {
        "name": name,
        "label": name,
        "type": "query",
        "datasource": _DATASOURCE,
        "query": {"query": query, "refId": name},
        "refresh": 2,
        "includeAll": True,
        "multi": True,
        "allValue": ".*",
        "current": {"text": ["All"], "value": ["$__all"]},
    }


def _placed() -> Iterator[dict[str, Any]]:
    """Yield all panels in the place of each, one row below another; up to 4 charts are a line."""
    top = 0
    for row in _ROWS.split("\n\n"):
        title, _, listed = row.partition("\n")
        yield {
            "type": "row",
            "title": title.removeprefix("# "),
            "collapsed": False,
            "panels": [],
            "gridPos": {"h": 1, "w": _WIDTH, "x": 0, "y": top},
        }
        top += 1
        panels = [_drawn(*found.groups()) for found in _PANEL.finditer(listed)]
        lines, height = (1, 5) if panels[0]["type"] == "stat" else (math.ceil(len(panels) / 4), 8)
        size = math.ceil(len(panels) / lines)
        for first in range(0, len(panels), size):
            line = panels[first : first + size]
            width = _WIDTH // len(line)
            for index, panel in enumerate(line):
                yield panel | {"gridPos": {"h": height, "w": width, "x": index * width, "y": top}}
            top += height


def _drawn(title: str, kind: str, unit: str, series: str, about: str | None) -> dict[str, Any]:
    defaults: dict[str, Any] = {"unit": unit, "min": 0}
    if kind in ("lines", "stacked"):
        stacking = {"mode": "normal" if kind == "stacked" else "none"}
        defaults["custom"] = {"fillOpacity": 10, "showPoints": "never", "stacking": stacking}
    expressions = [pair for text in series.split("; ") for pair in _expressions(text)]
    return {
        "type": kind if kind in _OPTIONS else "timeseries",
        "title": title,
        "description": about or "",
        "datasource": _DATASOURCE,
        "fieldConfig": {"defaults": defaults, "overrides": []},
        "targets": [
            {
                "refId": reference,
                "datasource": _DATASOURCE,
                "expr": expression,
                "legendFormat": legend,
                **({"format": "heatmap"} if kind == "heatmap" else {}),
            }
            for reference, (legend, expression) in zip(ascii_uppercase, expressions, strict=False)
        ],
        "options": _OPTIONS.get(kind, _LINES),
    }


def _expressions(text: str) -> Iterator[tuple[str, str]]:
    """Yield legend and expression of each line that a series is."""
    match = _SERIES.fullmatch(text)
    assert match is not None, text
    function, metric, chosen, by, legend = match.groups()
    labels = [f"{{{{{label}}}}}" for label in by.split(", ")] if by else []
    legend = legend or " ".join(labels) or metric.removesuffix("_total").replace("_", " ")
    grouped = f" by ({by}) " if by else ""
    selected = f"{{{_SELECTED},{chosen}}}" if chosen else f"{{{_SELECTED}}}"
    found = f"purgatory_{metric}{selected}"
    rate = f"{found}[$__rate_interval]"
    match function:
        case "quantiles":
            grouped = f"by ({', '.join(filter(None, ('le', by)))})"
            for percent in (50, 99):
                quantile = f"{percent / 100:g}, sum {grouped} (rate({rate}))"
                yield " ".join([*labels, f"p{percent}"]), f"histogram_quantile({quantile})"
        case "fill":
            share = f"purgatory_{metric}{{{_SELECTED}}} / on (job, instance, worker)"
            yield legend, f"max({share} (purgatory_limit{selected}))"
        case "rate" | "increase":
            yield legend, f"sum{grouped}({function}({rate}))"
        case _:
            yield legend, f"{function}{grouped}({found})"
