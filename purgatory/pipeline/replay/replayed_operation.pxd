from purgatory.operations.delayed_operation cimport DelayedOperation


cdef class ReplayNotes:
    cdef public list fates
    cdef public list late_ns
    cdef public long long fired_ns
    cdef public long long opened_ns


cdef class ReplayedOperation(DelayedOperation):
    cdef public long long deadline_ns
    cdef public long long end_ns
    cdef public long long fate
    cdef public ReplayNotes notes
