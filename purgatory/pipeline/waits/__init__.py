"""Tables of waits: counts, durations, lateness and concurrency, by key, hour and outcome."""
