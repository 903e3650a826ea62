"""Claiming: which jobs this worker leases, when, and which of them it gives back.

Here: the loop that claims what is due soon, jobs that were due while no worker ran, jobs for which
this process has no handler, and jobs that it cannot start soon. Not here: what happens to a job
once it is leased (`running`), and the leases themselves (`leased_jobs`, `lease_renewer`).
"""
