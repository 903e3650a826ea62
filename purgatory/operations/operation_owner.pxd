cdef class OperationOwner:
    cdef public object checked_key

    cdef _leave(self, object operation)
