cimport cython


@cython.final
cdef class WakeUps:
    cdef object _argument
    cdef object _call_soon
    cdef object _callback
    cdef object _context
    cdef bint _is_scheduled
    cdef list _others
    cdef readonly object loop

    cpdef add(self, callback, argument, context)
    @cython.locals(others=list, count=cython.Py_ssize_t)
    cpdef _run(self)
