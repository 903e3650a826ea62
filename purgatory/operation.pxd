cimport cython
from purgatory.timer.task cimport PendingTasks, TimerTask


cdef class DelayedOperation(TimerTask):
    cdef public tuple _keys
    cdef public object _purgatory
    cdef readonly object status

    @cython.locals(pending=PendingTasks, previous=TimerTask, following=TimerTask)
    cpdef bint force_complete(self)
    cpdef bint _cancel(self, object status)
    cpdef bint _settle(self, object status)
