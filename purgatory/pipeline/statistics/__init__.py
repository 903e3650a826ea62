"""Statistics without Spark's or the journal's terms: histograms, percentiles, survival."""
