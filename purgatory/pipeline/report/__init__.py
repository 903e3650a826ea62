"""The report on a journal: one HTML file with charts and advice.

Here: the page, its sections and tables, and what changed since the previous report; `charts` draws.
Not here: statistics and advice, which are read from what `waits` and `advise` wrote.
"""
