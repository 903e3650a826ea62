"""A Kafka broker in memory, for tests in virtual time, and a proof by Kafka's own clients.

Its produces, fetches, joins, syncs and sessions wait in purgatories, as in Kafka. See README.md;
`python -m examples.kafka_broker` prints figures.
"""
