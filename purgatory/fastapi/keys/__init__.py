"""The endpoints of keys: fire, describe, drop, list, each with its parameters and schemas.

Not here: waiting for a key (`watch`).
"""
