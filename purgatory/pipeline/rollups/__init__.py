"""Rollups: aggregates of the outcomes by hour, day and month, and the tables made from them.

An engine aggregates the hours that changed; what is merged from them is small, and DuckDB merges it
on this machine, whatever the engine. So a run costs what changed, and the tables do not depend on
the engine.
"""
