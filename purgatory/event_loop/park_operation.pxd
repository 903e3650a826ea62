cimport cython
from purgatory.event_loop.c_tuple cimport new_tuple
from purgatory.operations.delayed_operation cimport DelayedOperation
from purgatory.signals.memory cimport MemorySignals
from purgatory.signals.signal cimport Signal
from purgatory.timer.c_clock cimport system_now_ns

cdef bint compiled
cdef long long NS_PER_MS


cdef class ParkOperation(DelayedOperation):
    cdef object _clock
    cdef object _key
    cdef long long _position
    cdef dict _positions
    cdef long long _seen
    cdef Signal _signal
    cdef MemorySignals _signals
    cdef long long _started_ns
    cdef object _until
    cdef tuple _watched
    cdef readonly object future

    @cython.locals(head=cython.longlong, signal=Signal)
    cdef bint _try(self) except -1
    cdef bint _try_predicate(self) except -1
    @cython.locals(position=cython.longlong, positions=dict)
    cdef object _fired_key(self)
    cdef _complete(self)
    cdef _answer(self)
    @cython.locals(
        signals=MemorySignals, first=Signal, last=Signal, position=cython.longlong,
        now_ns=cython.longlong, waited_ms=cython.longlong,
    )
    cdef _outcome(self)
    @cython.locals(
        first=Signal, signal=Signal, position=cython.longlong, positions=dict
    )
    cdef Signal _first_unread(self)


@cython.locals(operation=ParkOperation, head=cython.longlong)
cpdef ParkOperation new_park(
    long long delay_ms, MemorySignals signals, tuple keys, dict positions, future, clock, until
)
