"""uvicorn's connections, with requests that are parked without a task.

    uvicorn --http purgatory.uvicorn:ParkingProtocol app:app

This path is stable, since it stands on command lines; the code is in `purgatory.fastapi.servers`.
Importing it raises ImportError if FastAPI, uvicorn or httptools is not installed.
"""

from purgatory.fastapi.servers.uvicorn_protocol import ParkingProtocol

__all__ = ["ParkingProtocol"]
