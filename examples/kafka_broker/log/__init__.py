"""Replicated logs in memory, and the produces and fetches that wait for them."""
