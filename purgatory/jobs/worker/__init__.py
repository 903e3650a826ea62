"""The worker of one process: claims jobs that are due soon, runs handlers, records the results.

Not here: what a step makes of a job (`jobs.model`), and how a store keeps it (`jobs.stores`).
"""
