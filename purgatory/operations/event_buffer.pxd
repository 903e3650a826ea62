cimport cython
from purgatory.timer.c_clock cimport system_now_ns

cdef bint compiled


cdef class EventBuffer:
    cdef list _events
    cdef bint _is_system
    cdef Py_ssize_t _limit
    cdef object _now_ns
    cdef public Py_ssize_t dropped

    @cython.locals(events=list, now_ns=cython.longlong)
    cpdef record(self, object operation, object status, object keys, object key, object deadline_ms)
    cpdef put(self, object event)
    cdef _drop(self)
