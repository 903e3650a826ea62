"""Claiming: which jobs this worker leases, when, and which of them it gives back.

Here: the loop that claims what is due soon, jobs that were due while no worker ran, and jobs that
this process cannot start soon. Not here: what happens to a job once it is leased (`running`), and
the leases themselves (`leased_jobs`, `lease_renewer`).
"""
