"""The service: Purgatory on a port of its own."""
