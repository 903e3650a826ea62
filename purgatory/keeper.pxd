cdef class Keeper:
    cdef public object checked_key

    cdef _leave(self, object operation)
