"""A load replayed through the real timer and purgatory in simulated time, sharded over Spark."""
