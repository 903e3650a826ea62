cimport cython

cdef bint compiled
cdef Py_ssize_t _MAX_KEY_LENGTH
cdef Py_ssize_t _WATCH_BYTES

@cython.locals(text=str, character=cython.Py_UCS4)
cpdef check_key(key)

@cython.locals(text=str, taken=cython.Py_ssize_t)
cpdef Py_ssize_t watch_bytes(tuple keys) except -1
