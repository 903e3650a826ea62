cimport cython
from purgatory.event_loop.c_thread cimport thread_ident
from purgatory.event_loop.c_tuple cimport new_tuple
from purgatory.operations.c_context cimport copy_current
from purgatory.operations.delayed_operation cimport DelayedOperation, DelayedOperationPurgatory
from purgatory.operations.watch_key cimport check_key
from purgatory.signals.memory cimport MemorySignals, Signal
from purgatory.signals.wait_operation cimport ParkOperation, WakeUps
from purgatory.timer.c_clock cimport system_now_ns
from purgatory.timer.task cimport TimerTask

cdef bint compiled
cdef long long NS_PER_MS
cdef double NS_PER_SECOND
cdef Py_ssize_t MAX_UNSLICED
cdef object FireResult, _PENDING


cdef class Parking:
    cdef object _clock
    cdef Py_ssize_t _max_keys
    cdef Py_ssize_t _max_parked
    cdef Py_ssize_t _max_parked_bytes
    cdef Py_ssize_t _max_parked_per_key
    cdef double _max_timeout
    cdef str _name
    cdef WakeUps _wake_ups
    cdef DelayedOperationPurgatory _operations
    cdef object _shards
    cdef MemorySignals _signals
    cdef TimerTask _trim
    cdef public bint is_draining
    cdef public object loop
    cdef public object none_completed
    cdef public Py_ssize_t opened
    cdef public dict refused
    cdef public unsigned long thread_id

    @cython.locals(operation=ParkOperation, found=dict, positions=tuple, delay_ms=cython.longlong,
                   signals=MemorySignals)
    cpdef ParkOperation park(self, tuple keys, timeout, until, cursor)
    @cython.locals(operation=ParkOperation, wake_ups=WakeUps)
    cdef ParkOperation _new_park(
        self, long long delay_ms, MemorySignals signals, tuple keys, tuple positions, until
    )
    cpdef bint park_operation(self, DelayedOperation operation, tuple keys, bint is_bounded)
    @cython.locals(
        signals=MemorySignals, signal=Signal, trim=TimerTask, completed=cython.Py_ssize_t,
    )
    cpdef fire(self, key, value, owner=*)
    cpdef Py_ssize_t check(self, key) except? -2
    cpdef require_open(self)
    @cython.locals(seconds=cython.double, whole_ns=cython.longlong)
    cpdef long long delay_ms(self, timeout) except -1
    @cython.locals(signals=MemorySignals, positions=dict)
    cpdef dict positions(self, keys, cursor)
    @cython.locals(operations=DelayedOperationPurgatory)
    cpdef check_limits(self, tuple keys)
    cpdef count_refusal(self, str limit)
    cpdef check_count(self, Py_ssize_t keys)
