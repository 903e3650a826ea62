cimport cython
from purgatory.operations.delayed_operation cimport DelayedOperation
from purgatory.timer.c_clock cimport system_now_ns

cdef bint compiled
cdef long long NS_PER_MS


cdef class Histogram:
    cdef readonly tuple bounds
    cdef readonly list counts
    cdef readonly object total

    cpdef add(self, long long value)


cdef class KindTimes:
    cdef readonly Py_ssize_t parked
    cdef readonly Histogram fired
    cdef readonly Histogram expired
    cdef readonly Histogram cancelled
    cdef readonly Histogram drained
    cdef readonly Histogram outdated


cdef class WaitTimes:
    cdef dict _classes
    cdef bint _is_system
    cdef object _now_ns
    cdef readonly dict kinds
    cdef readonly Histogram lateness

    @cython.locals(times=KindTimes, now_ms=cython.longlong, waited_ms=cython.longlong)
    cpdef record(
        self, DelayedOperation operation, object status, object keys, object key,
        long long deadline_ms,
    )
    cdef KindTimes _times_of(self, object cls)
