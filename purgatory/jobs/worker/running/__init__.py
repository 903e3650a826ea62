"""Running: from a leased job that is due to the result that the store records.

Not here: which jobs are leased (`claiming`), and the user's functions (`jobs.handlers`).
"""
