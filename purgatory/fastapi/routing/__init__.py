"""Endpoints, and routes of FastAPI to them, declared once for OpenAPI and parsers.

Not here: what an endpoint takes and does (`watch`, `keys`, `jobs`), and how values are parsed
(`http`).
"""
