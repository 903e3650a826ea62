"""The protocol class for uvicorn: parking without an ASGI scope, a task or a frame.

    uvicorn --http purgatory.uvicorn:ParkingProtocol app:app

The responses are those of the application, for a third of the memory per parked request. If this
version of uvicorn lacks private names that the class needs, `ParkingProtocol` is uvicorn's own
protocol, and a warning says so.

This path is stable, because it is used on command lines; the code is in
`purgatory.fastapi.servers.uvicorn`. Importing it raises ImportError if FastAPI, uvicorn or
httptools is not installed.
"""

from purgatory.fastapi.servers.uvicorn.protocol_choice import ParkingProtocol

__all__ = ["ParkingProtocol"]
