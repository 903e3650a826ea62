"""Workers of the example as real processes, on a real Valkey behind a proxy that can be cut."""
