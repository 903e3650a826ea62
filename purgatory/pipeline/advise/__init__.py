"""Advice on settings: timeouts, the wheel's geometry, the number of workers.

Computed on the driver, from the small tables of `waits` and a sample of timers; how it is shown is
in `report`.
"""
