"""Handlers: the functions that jobs run, their payload types, and the threads of sync handlers.

Not here: when a handler is called, and what its result makes of a job (`jobs.worker`); our own
handlers (`jobs.callbacks`).
"""
