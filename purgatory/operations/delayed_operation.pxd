cimport cython
from purgatory.operations.c_context cimport context_exit, enter_copy
from purgatory.operations.operation_owner cimport OperationOwner
from purgatory.timer.task cimport TaskArray, TimerTask

cdef bint compiled


cdef class DelayedOperation(TimerTask):
    cdef public tuple _keys
    cdef public object _parked_in
    cdef public OperationOwner _purgatory
    cdef readonly object status

    cpdef bint force_complete(self)
    cdef bint _try(self) except -1
    cdef _complete(self)
    cpdef bint _cancel(self, object status)
    @cython.locals(array=TaskArray, purgatory=OperationOwner)
    cpdef bint _settle(self, object status)
    @cython.locals(owner=OperationOwner)
    cdef bint _end_in_own_context(self, object status) except -1
    cpdef bint _end_as(self, object status)
    cdef _listener_context(self)
