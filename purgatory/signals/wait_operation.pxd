cimport cython
from purgatory.operations.delayed_operation cimport DelayedOperation
from purgatory.signals.memory cimport MemorySignals

cdef object _CANCELLED, _DRAINED, _OUTDATED


@cython.final
cdef class Condition:
    cdef readonly Py_ssize_t min_signals
    cdef readonly Py_ssize_t needed_keys


cdef class WaitOperation(DelayedOperation):
    cdef tuple _positions
    cdef readonly Condition condition
    cdef readonly bint is_abandoned
    cdef readonly long long position
    cdef readonly MemorySignals signals
    cdef readonly tuple watched_keys

    @cython.locals(
        signals=MemorySignals, condition=Condition, keys=tuple, positions=tuple,
        position=cython.longlong, index=cython.Py_ssize_t, needed=cython.Py_ssize_t,
    )
    cpdef bint try_complete(self) except -1
    cpdef bint _settle(self, object status)
    @cython.locals(
        signals=MemorySignals, keys=tuple, positions=tuple, position=cython.longlong,
        index=cython.Py_ssize_t,
    )
    cdef bint _is_outdated(self, object status) except -1
