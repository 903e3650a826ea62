"""A SQLite file: connections, the thread that writes to it, and look-ups on the event loop.

Not here: statements and transactions, which are those of PostgreSQL, too.
"""
