cimport cython
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
    cdef _listener_context(self)
