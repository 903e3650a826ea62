cimport cython


@cython.final
cdef class Signal:
    cdef readonly object key
    cdef readonly long long seq
    cdef readonly long long offset
    cdef readonly long long at_ms
    cdef readonly bytes encoded
    cdef Signal _older
    cdef Signal _newer
    cdef Signal _older_of_key
    cdef Signal _newer_of_key
    cdef str _owner


@cython.locals(signal=Signal)
cpdef Signal _unlinked(key, long long seq, long long offset, long long at_ms, bytes encoded)
