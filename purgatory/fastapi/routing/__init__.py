"""Endpoints as raw ASGI inside FastAPI's routes, with the dependencies in front of them."""
