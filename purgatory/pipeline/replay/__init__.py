"""Replay: a load through the real timer and purgatory in simulated time, sharded over Spark.

`load_driver`, `replayed_operation` and `replay_clock` are compiled with the core and know no Spark.
"""
