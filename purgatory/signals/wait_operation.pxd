cimport cython
from purgatory.event_loop.c_tuple cimport new_tuple
from purgatory.operations.c_context cimport context_enter, context_exit
from purgatory.operations.delayed_operation cimport DelayedOperation, DelayedOperationPurgatory
from purgatory.signals.memory cimport MemorySignals, Signal
from purgatory.timer.c_clock cimport system_now_ns

cdef bint compiled
cdef long long NS_PER_MS
cdef object Outcome
cdef object _CANCELLED, _DRAINED, _FIRED, _NOT_BY_TASK, _OUTDATED, _PENDING

cdef class WakeUps


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


cdef class ParkOperation(WaitOperation):
    cdef public bint _asyncio_future_blocking
    cdef object _callback
    cdef object _error
    cdef object _key
    cdef ParkOperation _next
    cdef long long _started_ns
    cdef object _task_context
    cdef object _until
    cdef WakeUps _wake_ups
    cdef readonly object outcome

    @cython.locals(purgatory=DelayedOperationPurgatory)
    cpdef bint try_complete(self) except -1
    cpdef on_complete(self)
    cdef bint _try(self) except -1
    cdef _complete(self)
    @cython.locals(signals=MemorySignals)
    cdef bint _is_outdated(self, object status) except -1
    cdef _listener_context(self)
    @cython.locals(
        signals=MemorySignals, keys=tuple, first=Signal, last=Signal, position=cython.longlong,
        wake_ups=WakeUps, now_ns=cython.longlong, waited_ms=cython.longlong,
    )
    cdef _set_outcome(self)
    @cython.locals(
        signals=MemorySignals, first=Signal, signal=Signal, keys=tuple, positions=tuple,
        position=cython.longlong, index=cython.Py_ssize_t,
    )
    cdef Signal _first_signal(self)
    cdef object _trimmed_key(self)


@cython.final
cdef class WakeUps:
    cdef object _done
    cdef ParkOperation _first
    cdef ParkOperation _last
    cdef object clock
    cdef bint is_system
    cdef readonly object loop

    @cython.locals(last=ParkOperation)
    cdef add(self, ParkOperation operation)
    @cython.locals(operation=ParkOperation, following=ParkOperation)
    cpdef _run(self)
