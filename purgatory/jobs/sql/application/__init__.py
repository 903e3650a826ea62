"""Steps in transactions of the application: its sessions, their commits, jobs and fires in them.

Not here: transactions of the store itself, and the relay that fires what is committed.
"""
