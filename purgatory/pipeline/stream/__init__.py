"""Streaming queries on the journal as it grows, by window, and alerts.

The same figures over the whole history are in `waits`.
"""
