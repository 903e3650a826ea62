"""Ownership: the lease store against a model, leases in virtual time, and whole workers."""
