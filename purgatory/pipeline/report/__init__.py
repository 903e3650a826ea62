"""The report on a journal: one HTML file with charts and advice.

It only reads what `waits` and `advise` wrote; nothing is computed here.
"""

DEFAULT_TITLE = "What waited, and for how long"
"""Of the page."""
