"""A FastAPI application on uvicorn, asked over a socket."""

import http.client
import threading
import time

import uvicorn
from fastapi import FastAPI

from purgatory import Purgatory
from purgatory.fastapi import install

app = FastAPI()
install(app, Purgatory())
server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="warning"))
thread = threading.Thread(target=server.run)
thread.start()
while not server.started and thread.is_alive():
    time.sleep(0.01)
port = server.servers[0].sockets[0].getsockname()[1]
connection = http.client.HTTPConnection("127.0.0.1", port)
connection.request("GET", "/purgatory/watch/paid?wait=0")
assert connection.getresponse().status == 200
connection.close()
server.should_exit = True
thread.join()
