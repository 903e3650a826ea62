"""Requests and responses as bytes and messages: parameters, headers, bodies, bounds, problems.

Here: RFC 9110, 7240 and 9457, for every endpoint, and the permit that a request carries. Not here:
what an endpoint does, how FastAPI routes to it (`routing`), and who gets a permit (`access`).
"""
