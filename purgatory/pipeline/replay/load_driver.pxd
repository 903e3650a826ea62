cimport cython
from purgatory.operations.delayed_operation cimport DelayedOperationPurgatory
from purgatory.pipeline.replay.replay_clock cimport ReplayClock
from purgatory.pipeline.replay.replayed_operation cimport ReplayedOperation, ReplayNotes
from purgatory.timer.system_timer cimport SystemTimer

cdef long long NS_PER_MS
cdef long long _FORCED
cdef long long _FIRED
cdef long long _NEVER_NS


cdef class LoadDriver:
    cdef long long _armed_ns
    cdef long long _arrived
    cdef long long _at_once
    cdef object _before
    cdef long long _buckets
    cdef long long _cascaded
    cdef ReplayClock _clock
    cdef DelayedOperationPurgatory _core
    cdef object _cpu_time
    cdef long long _longest_run
    cdef long long _next_ns
    cdef ReplayNotes _notes
    cdef long long _peak
    cdef object _slice
    cdef long long _slice_end_ns
    cdef long long _slice_ns
    cdef list _slices
    cdef SystemTimer _timer

    @cython.locals(
        arrival_ns="const long long[:]", delay_ms="const long long[:]", fate="const long long[:]",
        keys=list, clock=ReplayClock, core=DelayedOperationPurgatory, notes=ReplayNotes,
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
        timer=SystemTimer, notes=ReplayNotes, cascaded=cython.longlong, ran=cython.longlong,
        moved=cython.longlong,
    )
    cdef _open_bucket(self)
    cdef _close_slice(self)
    @cython.locals(notes=ReplayNotes)
    cdef _count_expired(self)
