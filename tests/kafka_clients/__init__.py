"""Kafka's own clients, unmodified, as judges of examples/kafka_broker, each in a process.

The wheels are of PyPI, two clients of npm, and kcat is a package of the system.
"""
