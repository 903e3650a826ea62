"""Requests that wait for keys, or follow them: endpoints, parameters, waits, limits, responses.

Each wait is a `ParkedRequest`, a `purgatory.signals.WaitOperation` that responds on its connection
when it ends; a `ParkedStream` sends events until then. Not here: what a server does with a parked
connection, which is in `servers`, and how a task of ASGI waits for its client to leave, which is in
`http`.
"""
