"""`python -m purgatory bench`: a small table of how fast the core is here, beside asyncio.

Here belongs what an installed library measures in a few seconds. The full benchmark, with more
baselines, memory and lateness, is `make bench` of a checkout (tests/benchmarks/core).
"""
