"""What is measured with. The only module of the benchmark that imports `time`."""

from time import monotonic_ns as wall_ns
from time import process_time_ns as cpu_ns
from time import thread_time_ns as thread_cpu_ns

# The throughput rows are CPU time: what else the machine does then weighs less.
__all__ = ["cpu_ns", "thread_cpu_ns", "wall_ns"]
