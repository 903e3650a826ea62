cdef class OperationOwner:
    cdef public object current_key
    cdef public object ended_in
    cdef public bint keeps_ended_in

    cdef _enter(self, object context, object function, tuple arguments)
    cdef _unwatch(self, object operation)
