cdef long long NS_PER_MS


cdef class ReplayClock:
    cdef public long long at_ns
