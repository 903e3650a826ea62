"""The clocks of the benchmarks: wall time and CPU time."""

from time import monotonic_ns as wall_ns
from time import process_time_ns as cpu_ns
from time import thread_time_ns as thread_cpu_ns

# Throughput is measured in CPU time, which depends less on other processes.
__all__ = ["cpu_ns", "thread_cpu_ns", "wall_ns"]
