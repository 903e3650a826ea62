"""The database: engines, connections, its clock and settings, and its errors.

Not here: statements (`statements`), tables, and what a transaction does with jobs.
"""
