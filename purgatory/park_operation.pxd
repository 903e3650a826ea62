cimport cython
from purgatory.operation cimport DelayedOperation
from purgatory.signals.memory cimport MemorySignals
from purgatory.signals.signal cimport Signal


cdef class ParkOperation(DelayedOperation):
    cdef object _clock
    cdef str _key
    cdef long long _seen
    cdef long long _started_ns
    cdef object _until
    cdef readonly object future
    cdef readonly dict positions
    cdef readonly MemorySignals signals

    @cython.locals(signals=MemorySignals, head=cython.longlong)
    cdef bint _try_signals(self) except -1
    @cython.locals(signals=MemorySignals)
    cdef str _fired_key(self)
    cdef _answer(self)
    @cython.locals(
        signals=MemorySignals, first=Signal, last=list, only=Signal, position=cython.longlong,
        waited_ms=cython.longlong,
    )
    cdef _outcome(self)
    @cython.locals(
        signals=MemorySignals, first=Signal, signal=Signal, unread=list, position=cython.longlong
    )
    cdef Signal _first_unread(self)
