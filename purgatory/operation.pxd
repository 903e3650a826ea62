cimport cython
from purgatory.keeper cimport Keeper
from purgatory.timer.task cimport TaskArray, TimerTask

cdef bint compiled


cdef class DelayedOperation(TimerTask):
    cdef public tuple _keys
    cdef public Keeper _purgatory
    cdef readonly object status

    @cython.locals(array=TaskArray, purgatory=Keeper)
    cpdef bint force_complete(self)
    cdef bint _try(self) except -1
    cdef _complete(self)
    cpdef bint _cancel(self, object status)
    @cython.locals(array=TaskArray, purgatory=Keeper)
    cpdef bint _settle(self, object status)
