"""Statistics: histograms, percentiles, survival curves, confidence intervals.

Nothing here knows operations or outcomes.
"""
