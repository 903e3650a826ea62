"""Kafka's own clients, unmodified, as judges of examples/kafka_broker, in threads or processes.

The wheels are of PyPI, and two clients of npm. kcat is in neither, and so not among them.
"""
