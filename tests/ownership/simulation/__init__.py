"""Workers, members and Redis in one process and in virtual time, where everything may fail.

Each worker is the real application on an event loop of its own, which can be stopped for a while,
as by SIGSTOP, or for ever. Messages between them are delayed, lost and repeated by a seed.
"""
