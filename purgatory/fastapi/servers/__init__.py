"""What depends on the server: nothing below imports this.

Here: stop signals, worker counts, the ASGI extension `purgatory.park`, and the connections of
`ParkingProtocol`: requests read, and responses written, without ASGI. Users import
`purgatory.uvicorn`, which chooses the class. Private names of FastAPI are used in `routing.routes`
only, of Starlette there and in `http.asgi`, of uvicorn in `fallback_protocol`; each checks at
start-up that they behave as expected and otherwise logs a warning and leaves the requests to public
API.

Not here: what an endpoint does with a request, which is the same on any ASGI server.
"""
