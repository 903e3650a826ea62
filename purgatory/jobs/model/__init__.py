"""Delayed jobs as values: their fields, steps, transitions and limits.

Pure values and functions: no I/O, no event loop, no store. `job` has what is stored of one, `spec`
what is asked for, `steps` every change, `transitions` the table of what each does with a job in
each phase. Errors are in `purgatory.job_errors`.
"""
