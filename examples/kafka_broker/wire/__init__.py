"""Kafka's protocol on a socket: frames, versions, and values to and from bytes by kio."""
