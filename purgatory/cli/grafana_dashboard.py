"""The dashboard to import into Grafana: `purgatory monitoring grafana`.

Made here, since all panels of a kind differ in their title, unit and expressions only.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from string import ascii_uppercase
from typing import Any, Final

_WIDTH: Final = 24
_DATASOURCE: Final = {"type": "prometheus", "uid": "${datasource}"}
_HEIGHTS: Final = {"row": 1, "stat": 5}
_STAT: Final = {
    "reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False},
    "colorMode": "value",
    "graphMode": "area",
}
_LINES: Final = {
    "legend": {"displayMode": "list", "placement": "bottom"},
    "tooltip": {"mode": "multi", "sort": "desc"},
}
_HEATMAP: Final = {
    "calculate": False,
    "yAxis": {"unit": "s"},
    "color": {"mode": "scheme", "scheme": "Oranges"},
    "cellGap": 1,
}


@dataclass(frozen=True, slots=True)
class _Panel:
    """One panel; `{...}` after a metric gets the labels of the selected servers, too."""

    title: str
    unit: str
    series: Sequence[tuple[str, str]]
    """Of each, its legend and its expression; `[rate]` is Grafana's interval for rates."""
    description: str = ""
    type: str = "timeseries"
    is_stacked: bool = False


def _stat(title: str, unit: str, legend: str, expression: str, description: str = "") -> _Panel:
    return _Panel(title, unit, [(legend, expression)], description, type="stat")


def _sums(function: str, **counters: str) -> list[tuple[str, str]]:
    """Return the `rate` or the `increase` of each counter, all workers together."""
    return [
        (name.replace("_", " "), f"sum({function}({counter}{{}}[rate]))")
        for name, counter in counters.items()
    ]


def _quantiles(buckets: str, by: str = "") -> list[tuple[str, str]]:
    """Return the median and the 99th percentile of a histogram, by `le` and perhaps a label."""
    labels, legend = (f"le, {by}", f"{{{{{by}}}}} ") if by else ("le", "")
    return [
        (
            f"{legend}p{percent}",
            f"histogram_quantile({percent / 100:g}, sum by ({labels}) (rate({buckets}[rate])))",
        )
        for percent in (50, 99)
    ]


_WORKER: Final = "{{instance}} {{worker}}"
_BY_WORKER: Final = "by (instance, worker)"
_IN_THE_STORE: Final = "In the store; every worker reports the same."
_FIRED: Final = 'purgatory_wait_seconds_bucket{outcome="fired"}'

# Of each row, the lines of its panels, which share its width.
_ROWS: Final[dict[str, list[list[_Panel]]]] = {
    "Now": [
        [
            _stat(
                "Parked",
                "short",
                "parked",
                "sum(purgatory_parked{})",
                "Requests and other operations that wait.",
            ),
            _stat(
                "Of the limit",
                "percentunit",
                "of max_parked",
                "max(purgatory_parked{} / on (job, instance, worker) "
                '(purgatory_limit{limit="max_parked"}))',
                "The fullest worker; at 100 % clients get 503.",
            ),
            _stat("Workers ready", "short", "ready", "sum(purgatory_ready{})"),
            _stat("Fires", "reqps", "fires", "sum(rate(purgatory_fires_total{}[rate]))"),
            _stat(
                "Jobs waiting",
                "short",
                "waiting",
                'max(purgatory_jobs{state="waiting"})',
                _IN_THE_STORE,
            ),
            _stat("Jobs failed", "short", "failed", 'max(purgatory_jobs{state="failed"})'),
        ],
    ],
    "Waits": [
        [
            _Panel(
                "Parked by worker",
                "short",
                [(_WORKER, f"sum {_BY_WORKER} (purgatory_parked{{}})")],
                is_stacked=True,
            ),
            _Panel(
                "Waits that end, by outcome",
                "reqps",
                [("{{outcome}}", "sum by (outcome) (rate(purgatory_waits_total{}[rate]))")],
                is_stacked=True,
            ),
            _Panel(
                "Refused, by limit",
                "reqps",
                [("{{limit}}", "sum by (limit) (rate(purgatory_refused_total{}[rate]))")],
            ),
        ],
        [
            _Panel(
                "How long waits took until they fired",
                "s",
                [("{{le}}", f"sum by (le) (increase({_FIRED}[rate]))")],
                type="heatmap",
            ),
            _Panel("Time until fired, by kind", "s", _quantiles(_FIRED, "kind")),
            _Panel(
                "Keys and watches",
                "short",
                [("keys", "sum(purgatory_keys{})"), ("watches", "sum(purgatory_watches{})")],
            ),
        ],
    ],
    "Time": [
        [
            _Panel(
                "Lateness of deadlines",
                "s",
                _quantiles("purgatory_lateness_seconds_bucket{}"),
                "Less than a tick, plus what blocks the event loop.",
            ),
            _Panel(
                "Longest turn of expirations",
                "s",
                [(_WORKER, f"max {_BY_WORKER} (purgatory_longest_turn_seconds{{}})")],
            ),
            _Panel(
                "Wake-ups", "ops", [("wake-ups", "sum(rate(purgatory_wake_ups_total{}[rate]))")]
            ),
            _Panel(
                "Timing wheel",
                "short",
                [("level {{level}}", "sum by (level) (purgatory_wheel_timers{})")],
                "Timers by level; 0 is the finest.",
                is_stacked=True,
            ),
        ],
    ],
    "Signals": [
        [
            _Panel(
                "Signals kept",
                "short",
                [(_WORKER, f"sum {_BY_WORKER} (purgatory_signals{{}})")],
            ),
            _Panel(
                "Bytes kept",
                "bytes",
                [(_WORKER, f"sum {_BY_WORKER} (purgatory_signal_bytes{{}})")],
            ),
            _Panel(
                "Lag behind the log, by shard",
                "short",
                [("shard {{shard}}", "max by (shard) (purgatory_signals_lag{})")],
            ),
            _Panel(
                "Gaps and reconnects",
                "short",
                [
                    (
                        f"{what} {{{{shard}}}}",
                        f"sum by (shard) (increase(purgatory_signals_{what}_total{{}}[rate]))",
                    )
                    for what in ("gaps", "reconnects")
                ],
            ),
        ],
    ],
    "Jobs": [
        [
            _Panel(
                "Jobs by state",
                "short",
                [
                    ("{{state}}", "max by (state) (purgatory_jobs{})"),
                    ("blocked", "max(purgatory_jobs_blocked{})"),
                ],
                f"{_IN_THE_STORE} Blocked are jobs that are due and wait for a slot or for the end"
                " of a pause; they are also counted in their state.",
            ),
            _Panel(
                "Jobs that wait and run, by handler",
                "short",
                [
                    (
                        "{{handler}} {{state}}",
                        "max by (handler, state) (purgatory_handler_jobs{})",
                    ),
                    (
                        "{{handler}} blocked by {{blocked_by}}",
                        "max by (handler, blocked_by) (purgatory_handler_jobs_blocked{})",
                    ),
                ],
                "Counted in stores in memory and, up to 100,000 jobs that wait or run, on SQL and"
                " Redis. Blocked are also counted in their state.",
            ),
            _Panel(
                "Jobs that end, by handler and state",
                "ops",
                [
                    (
                        "{{handler}} {{state}}",
                        "sum by (handler, state) (rate(purgatory_jobs_ended_total{}[rate]))",
                    )
                ],
                is_stacked=True,
            ),
            _Panel("Lateness of jobs", "s", _quantiles("purgatory_job_lateness_seconds_bucket{}")),
        ],
        [
            _Panel(
                "Held, running, due",
                "short",
                [(what, f"sum(purgatory_jobs_{what}{{}})") for what in ("held", "running", "due")],
            ),
            _Panel(
                "Retries, put off, released",
                "ops",
                _sums(
                    "rate",
                    retries="purgatory_job_retries_total",
                    put_off="purgatory_jobs_put_off_total",
                    released="purgatory_jobs_released_total",
                ),
            ),
            _Panel(
                "Leases lost, recovered, outages",
                "short",
                _sums(
                    "increase",
                    leases_lost="purgatory_job_leases_lost_total",
                    recovered="purgatory_jobs_recovered_total",
                    outages="purgatory_job_store_outages_total",
                ),
            ),
        ],
    ],
}


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
    """Yield all panels in the place of each, one row below another."""
    top = 0
    for title, lines in _ROWS.items():
        yield {
            "type": "row",
            "title": title,
            "collapsed": False,
            "panels": [],
            "gridPos": {"h": 1, "w": _WIDTH, "x": 0, "y": top},
        }
        top += 1
        for line in lines:
            width, height = _WIDTH // len(line), _HEIGHTS.get(line[0].type, 8)
            for index, panel in enumerate(line):
                place = {"h": height, "w": width, "x": index * width, "y": top}
                yield _drawn(panel) | {"gridPos": place}
            top += height


def _drawn(panel: _Panel) -> dict[str, Any]:
    defaults: dict[str, Any] = {"unit": panel.unit, "min": 0}
    if panel.type == "timeseries":
        stacking = {"mode": "normal" if panel.is_stacked else "none"}
        defaults["custom"] = {"fillOpacity": 10, "showPoints": "never", "stacking": stacking}
    return {
        "type": panel.type,
        "title": panel.title,
        "description": panel.description,
        "datasource": _DATASOURCE,
        "fieldConfig": {"defaults": defaults, "overrides": []},
        "targets": [
            _target(reference, panel, *series)
            for reference, series in zip(ascii_uppercase, panel.series, strict=False)
        ],
        "options": {"stat": _STAT, "heatmap": _HEATMAP}.get(panel.type, _LINES),
    }


def _target(reference: str, panel: _Panel, legend: str, expression: str) -> dict[str, Any]:
    own = 'job=~"$job",instance=~"$instance"'
    chosen = re.sub(
        r"\{(.*?)\}", lambda found: f"{{{','.join(filter(None, (own, found[1])))}}}", expression
    )
    target = {
        "refId": reference,
        "datasource": _DATASOURCE,
        "expr": chosen.replace("[rate]", "[$__rate_interval]"),
        "legendFormat": legend,
    }
    return target | ({"format": "heatmap"} if panel.type == "heatmap" else {})
