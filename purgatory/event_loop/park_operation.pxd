cimport cython
from purgatory.event_loop.c_tuple cimport new_tuple
from purgatory.event_loop.wake_ups cimport WakeUps
from purgatory.signals.memory cimport MemorySignals
from purgatory.signals.signal cimport Signal
from purgatory.signals.wait_operation cimport WaitOperation
from purgatory.timer.c_clock cimport system_now_ns

cdef bint compiled
cdef long long NS_PER_MS


cdef class ParkOperation(WaitOperation):
    cdef public bint _asyncio_future_blocking
    cdef object _callback
    cdef object _clock
    cdef object _error
    cdef readonly object _loop
    cdef long long _started_ns
    cdef object _task_context
    cdef WakeUps _wake_ups
    cdef readonly object outcome

    cdef bint _try(self) except -1
    @cython.locals(now_ns=cython.longlong, waited_ms=cython.longlong, signals=MemorySignals)
    cpdef on_complete(self)
    cdef _complete(self)
    @cython.locals(
        signals=MemorySignals, first=Signal, signal=Signal, keys=tuple,
        positions=tuple, position=cython.longlong, index=cython.Py_ssize_t,
    )
    cdef tuple _read(self)
    cdef object _fired_key(self)
    @cython.locals(signals=MemorySignals)
    cdef bint _is_outdated(self, object status) except -1
    cdef _resume(self)
    cdef _listener_context(self)


cdef class PredicateParkOperation(ParkOperation):
    cdef object _key
    cdef object _until

    cpdef bint try_complete(self) except -1
    cdef bint _is_outdated(self, object status) except -1
    cdef bint _fail(self, error) except -1
    cdef _listener_context(self)
    @cython.locals(signals=MemorySignals, last=Signal)
    cdef tuple _read(self)


@cython.locals(operation=ParkOperation, conditional=PredicateParkOperation)
cpdef ParkOperation new_park(
    long long delay_ms, MemorySignals signals, tuple keys, tuple positions, WakeUps wake_ups,
    clock, until
)
