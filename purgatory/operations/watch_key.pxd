cimport cython

cdef bint compiled
cdef Py_ssize_t _MAX_KEY_LENGTH

@cython.locals(text=str, character=cython.Py_UCS4)
cpdef check_key(key)
