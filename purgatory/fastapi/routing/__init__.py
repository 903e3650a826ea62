"""Routes of FastAPI whose requests go to our endpoints, declared once for OpenAPI and parsers.

Not here: what an endpoint takes and does (`watch`, `keys`, `jobs`), and how values are parsed
(`http`).
"""
