cdef class OperationOwner:
    cdef public object current_key

    cdef _unwatch(self, object operation)
