"""Bounds in time and in bytes: on requests that arrive, and on responses that leave.

Not here: how many requests may be parked (`watch`), and how long (`WaitSettings`).
"""
