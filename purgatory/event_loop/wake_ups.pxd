cimport cython


@cython.final
cdef class WakeUps:
    cdef object _call_soon
    cdef bint _is_scheduled
    cdef list _pending
    cdef readonly object loop

    cpdef add(self, callback, argument, context)
    @cython.locals(pending=list, count=cython.Py_ssize_t)
    cpdef _run(self)
    cdef _schedule(self)
