cimport cython
from purgatory.event_loop.c_tuple cimport new_tuple
from purgatory.signals.memory cimport MemorySignals
from purgatory.signals.signal cimport Signal
from purgatory.signals.wait_operation cimport WaitOperation
from purgatory.timer.c_clock cimport system_now_ns

cdef bint compiled
cdef long long NS_PER_MS


cdef class ParkOperation(WaitOperation):
    cdef object _clock
    cdef object _key
    cdef long long _started_ns
    cdef object _until
    cdef readonly object future

    cdef bint _try(self) except -1
    cdef bint _try_predicate(self) except -1
    cdef object _fired_key(self)
    cdef _complete(self)
    cdef _answer(self)
    @cython.locals(
        signals=MemorySignals, first=Signal, last=Signal, position=cython.longlong,
        now_ns=cython.longlong, waited_ms=cython.longlong,
    )
    cdef _outcome(self)
    @cython.locals(
        first=Signal, signal=Signal, keys=tuple, position=cython.longlong, positions=tuple,
        index=cython.Py_ssize_t,
    )
    cdef Signal _first_unread(self)


@cython.locals(operation=ParkOperation)
cpdef ParkOperation new_park(
    long long delay_ms, MemorySignals signals, tuple keys, tuple positions, future, clock, until
)
