"""Clients that follow keys while the workers of a service are killed and drained."""
