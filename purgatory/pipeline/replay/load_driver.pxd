cimport cython
from purgatory.operations.delayed_operation cimport DelayedOperation, DelayedOperationPurgatory
from purgatory.timer.system_timer cimport SystemTimer

cdef long long NS_PER_MS
cdef long long _FORCED
cdef long long _FIRED
cdef long long _NEVER_NS


cdef class LoadDriver


cdef class ReplayedOperation(DelayedOperation):
    cdef public long long deadline_ns
    cdef public LoadDriver driver
    cdef public long long end_ns
    cdef public long long fate


cdef class LoadDriver:
    cdef long long _armed_ns
    cdef long long _arrived
    cdef long long _at_once
    cdef object _before
    cdef long long _buckets
    cdef long long _cascaded
    cdef DelayedOperationPurgatory _core
    cdef object _cpu_time
    cdef long long _longest_run
    cdef long long _next_ns
    cdef long long _peak
    cdef object _slice
    cdef long long _slice_end_ns
    cdef long long _slice_ns
    cdef list _slices
    cdef SystemTimer _timer
    cdef public long long at_ns
    cdef public list fates
    cdef public long long fired_ns
    cdef public list late_ns
    cdef public long long opened_ns

    @cython.locals(
        arrival_ns="const long long[:]", delay_ms="const long long[:]", fate="const long long[:]",
        keys=list, core=DelayedOperationPurgatory,
        count=cython.Py_ssize_t, ending=cython.Py_ssize_t, first=cython.Py_ssize_t,
        arrived=cython.Py_ssize_t, place=cython.Py_ssize_t, number=cython.Py_ssize_t,
        until_ns=cython.longlong, at_ns=cython.longlong, delay=cython.longlong,
        operation=ReplayedOperation, ended=ReplayedOperation,
    )
    cpdef play(
        self, object batch, list operations, list fired_keys, const long long[:] end_ns,
        const long long[:] ends,
    )
    cdef _end(self, ReplayedOperation operation, str fired_key)
    cdef _pass_time(self, long long until_ns)
    @cython.locals(
        timer=SystemTimer, cascaded=cython.longlong, ran=cython.longlong, moved=cython.longlong,
    )
    cdef _open_bucket(self)
    cdef _close_slice(self)
    cdef _count_expired(self)
