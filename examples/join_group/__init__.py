"""Kafka's group coordinator as a FastAPI application: members join and share partitions.

A join parks until every member has joined (DelayedJoin), a sync until the leader has assigned the
partitions (DelayedSync). A member without heartbeats for its session timeout is removed
(DelayedHeartbeat).

`python -m examples.join_group` demonstrates it, and
`uvicorn --factory examples.join_group.app:create_app` serves it. With `JOIN_GROUP_REDIS_URL`, each
group belongs to one of several workers: see docs/how-to/ownership.md.
"""
