"""Delayed jobs as values: their fields, steps, transitions, limits and errors.

Pure values and functions: no I/O, no event loop, no store. `steps` has every change of a job,
`transitions` the table of what each does with a job in each phase, `queries` what is asked of jobs.
"""
