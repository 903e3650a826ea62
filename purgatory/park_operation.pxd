cimport cython
from purgatory.signals.memory cimport MemorySignals
from purgatory.signals.signal cimport Signal
from purgatory.watch_operation cimport WatchOperation


cdef class ParkOperation(WatchOperation):
    cdef object _clock
    cdef str _key
    cdef long long _started_ns
    cdef object _until
    cdef readonly object future

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
