"""Server-sent events: streams of the signals of keys, at the addresses of waits.

Each stream is a `ParkedStream`, a parked request that stays on its keys and holds a position, never
a queue. Not here: iterators for endpoints of the application, which are in `dependencies`.
"""
