"""Signals of several workers while workers, their server and connections fail."""
