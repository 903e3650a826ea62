"""The endpoints of delayed jobs: schemas, parameters, responses.

Not here: what a job is and how it runs (`purgatory.jobs`).
"""
