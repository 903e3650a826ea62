"""The report on a journal: one HTML file with charts and advice.

It only reads what `waits` and `advise` wrote; nothing is computed here.
"""

from purgatory.pipeline.report.report_writer import run as write_report

__all__ = ["write_report"]
