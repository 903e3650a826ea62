"""The jobs `outcomes`, `waits` and `advise` on DuckDB, for journals that fit on this machine.

The same tables in the same files as with Spark, equal to the last digit: either engine continues
what the other one began.
"""
