"""The connections of `ParkingProtocol`: requests read, and responses written, without ASGI.

Users import `purgatory.uvicorn`, which chooses the class. Only
`fallback_protocol` uses what is private to uvicorn.
"""
