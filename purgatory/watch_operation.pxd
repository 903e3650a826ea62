cimport cython
from purgatory.operation cimport DelayedOperation
from purgatory.signals.memory cimport MemorySignals


cdef class WatchOperation(DelayedOperation):
    cdef long long _seen
    cdef readonly Py_ssize_t min_signals
    cdef readonly Py_ssize_t needed_keys
    cdef readonly dict positions
    cdef readonly MemorySignals signals
