"""The connections of `ParkingProtocol`: requests read, and responses written, without ASGI.

Users import `purgatory.uvicorn`, which takes the class from `protocol_choice`. Only
`fallback_protocol` uses what is private to uvicorn.
"""
