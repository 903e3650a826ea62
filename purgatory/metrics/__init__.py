"""Metrics for Prometheus, of one process or of several workers at one address. Extra `metrics`.

    collector = PurgatoryCollector(purgatory)
    REGISTRY.register(collector)

`purgatory.fastapi.install(app, purgatory, metrics=True)` does that and serves them.

Here: what is measured (`catalog`), the counts of one worker at one time (`measure`), those of all
workers and their form for Prometheus (`families`). Not here: counting itself,
which the rooms do whose counts these are, and `purgatory.operations.wait_histograms`.
"""

try:
    import prometheus_client as _prometheus  # noqa: F401  # only to say which extra is missing
except ImportError as exc:
    raise ImportError(
        "this needs prometheus-client: pip install 'fastapi-purgatory[metrics]'"
    ) from exc

from purgatory.metrics.collector import PurgatoryCollector

__all__ = ["PurgatoryCollector"]
