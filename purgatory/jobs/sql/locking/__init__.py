"""Locks of transactions on jobs: their order, and the places of jobs whose handlers are bounded.

Here: what several transactions must not change at once. Not here: what a step does with what is
locked (`sql.job_transaction`), and the locking statements (`sql.statements`).
"""
