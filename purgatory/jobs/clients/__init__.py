"""Clients of a job store, for processes without a purgatory: they defer and change jobs only."""

from purgatory.jobs.clients.job_client import JobClient, SyncJobClient

__all__ = ["JobClient", "SyncJobClient"]
