"""Kafka's group coordinator over HTTP, as a FastAPI application: long polls, and several workers.

The coordinator is that of examples/kafka_broker; here are its REST API, the leases by which each
group belongs to one of several workers (docs/how-to/ownership.md), and members as clients.

`python -m examples.join_group` demonstrates it, and
`uvicorn --factory examples.join_group.app:create_app` serves it.
"""
