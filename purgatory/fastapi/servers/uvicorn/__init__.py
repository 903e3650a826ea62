"""The connections of `ParkingProtocol`: requests read, and responses written, without ASGI.

`uvicorn_protocol`, beside this folder, is the module to import. Only `fallback_protocol` uses what
is private to uvicorn.
"""
