"""Requests that are parked until a key fires: endpoint, parameters, waits, limits, responses.

Each wait is a `ParkedRequest`, a `purgatory.signals.WaitOperation` that responds when it ends, and
`interruptible_receive` is where a task waits for the client to leave. The rooms above park with
both. Not here: what a server does with a parked connection, which is in `servers`.
"""
