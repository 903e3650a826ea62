cimport cython


@cython.final
cdef class Condition:
    cdef readonly Py_ssize_t min_signals
    cdef readonly Py_ssize_t needed_keys
