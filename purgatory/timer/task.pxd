cimport cython


@cython.final
cdef class PendingTasks:
    cdef readonly Py_ssize_t count

    @cython.locals(previous=TimerTask, following=TimerTask)
    cpdef remove(self, TimerTask task)


# Outside the cyclic collector, and built from a free list: a million timers are neither scanned
# nor asked for one by one. A timer that is dropped takes its tasks out (SystemTimer.__del__), so
# that the links between them keep nobody alive.
@cython.no_gc
@cython.freelist(4096)
cdef class TimerTask:
    cdef TimerTask _next
    cdef PendingTasks _pending
    cdef TimerTask _previous
    cdef public long long delay_ms
    cdef public long long expiration_ms
