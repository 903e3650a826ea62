cimport cython
from purgatory.delayed_operation_purgatory cimport DelayedOperationPurgatory
from purgatory.keys cimport check_key
from purgatory.operation cimport DelayedOperation
from purgatory.park_operation cimport ParkOperation
from purgatory.signals.memory cimport MemorySignals
from purgatory.signals.signal cimport Signal
from purgatory.timer.task cimport TimerTask


cdef class Parking:
    cdef object _clock
    cdef Py_ssize_t _max_keys
    cdef Py_ssize_t _max_parked
    cdef Py_ssize_t _max_parked_per_key
    cdef object _max_timeout
    cdef str _name
    cdef DelayedOperationPurgatory _operations
    cdef MemorySignals _signals
    cdef TimerTask _trim
    cdef public bint is_draining
    cdef public object loop
    cdef public Py_ssize_t opened
    cdef public object thread_id

    @cython.locals(operation=ParkOperation, positions=dict, watched=tuple)
    cpdef ParkOperation park(self, tuple keys, timeout, until, cursor)
    cpdef bint watch(self, DelayedOperation operation, tuple keys, bint is_bounded)
    @cython.locals(signal=Signal, trim=TimerTask)
    cpdef Signal keep(self, key, value)
    cpdef require_open(self)
    cpdef delay_ms(self, timeout)
    @cython.locals(signals=MemorySignals, positions=dict)
    cpdef dict positions(self, keys, cursor)
    @cython.locals(operations=DelayedOperationPurgatory)
    cpdef check_limits(self, tuple keys)
    cpdef check_count(self, Py_ssize_t keys)
