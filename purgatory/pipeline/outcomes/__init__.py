"""The table of outcomes: one row for each operation, from the events of the journal.

Tables that are computed from it are in `waits`; reading the journal as a table of Spark is in
`source`.
"""
