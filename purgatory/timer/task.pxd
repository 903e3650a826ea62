cimport cython


@cython.final
cdef class PendingTasks:
    cdef readonly Py_ssize_t count

    @cython.locals(previous=TimerTask, following=TimerTask)
    cpdef remove(self, TimerTask task)


@cython.no_gc
cdef class TimerTask:
    cdef TimerTask _next
    cdef PendingTasks _pending
    cdef TimerTask _previous
    cdef public long long delay_ms
    cdef public long long expiration_ms
