"""Clients of event streams that others wrote, against our streams."""
