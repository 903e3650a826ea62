"""The dashboard: its page, the list of waits, snapshots, and actions.

Nothing here runs while no dashboard is open. Not here: the lists of keys and jobs (`keys`, `jobs`),
which have their own endpoints.
"""
