"""Requests and responses as bytes and messages: parsing, headers, problem details, entity tags.

Here: what RFC 9110, 7240 and 9457 say, whatever the endpoint. Not here: what an endpoint does, and
who may call it (`access`).
"""
