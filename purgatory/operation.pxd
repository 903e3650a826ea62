cimport cython
from purgatory.timer.task cimport TaskArray, TimerTask


cdef class DelayedOperation(TimerTask):
    cdef public tuple _keys
    cdef public object _purgatory
    cdef readonly object status

    @cython.locals(array=TaskArray)
    cpdef bint force_complete(self)
    cpdef bint _cancel(self, object status)
    @cython.locals(array=TaskArray)
    cpdef bint _settle(self, object status)
