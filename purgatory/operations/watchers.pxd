cimport cython


@cython.final
cdef class Watchers:
    cdef readonly dict operations
