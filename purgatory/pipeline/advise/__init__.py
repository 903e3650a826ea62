"""Advice on settings: timeouts, the number of workers.

Computed on the driver, from the small tables of `waits`; how it is shown is in `report`.
"""
