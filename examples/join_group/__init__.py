"""Kafka's group coordinator as a FastAPI application: members join, agree, and share partitions.

A join parks until every member is back (DelayedJoin), a sync until the leader has assigned
(DelayedSync), and a member that is silent for longer than its session is out (DelayedHeartbeat).
`python -m examples.join_group` shows it; `uvicorn --factory examples.join_group.app:create_app`
serves it.
"""
