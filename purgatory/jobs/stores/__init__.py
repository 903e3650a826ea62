"""The protocol of job stores, what all stores share, and the store in memory.

Stores of a vendor have rooms of their own: `jobs.sql` and `jobs.redis`.
"""
