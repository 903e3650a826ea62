"""The ASGI extension `purgatory.park`: a server keeps a waiting request without the application.

`scope["extensions"]["purgatory.park"]["release"]` is a function. An application that has not begun
to respond calls it, in the request's own task, with the scope, its `send` and the operation for
which the request waits. If it returns a function, the application returns too, without a response;
that function, called with a Starlette response at any time from then on, responds to the request,
and a client that leaves cancels the operation. If it returns None, the request cannot be released,
and the application goes on as if there were no extension.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from starlette.responses import Response

EXTENSION: Final = "purgatory.park"
RELEASE: Final = "release"

Respond = Callable[[Response], object]
