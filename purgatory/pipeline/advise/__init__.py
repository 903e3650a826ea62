"""Advice on settings: timeouts, the wheel's geometry, the number of workers."""
