# SystemClock without a Python call, for what is compiled: time.monotonic_ns() is CLOCK_MONOTONIC
# and time.time_ns() CLOCK_REALTIME, on Linux and on macOS.

cdef extern from "<time.h>" nogil:
    ctypedef long time_t
    ctypedef int clockid_t
    const clockid_t CLOCK_MONOTONIC
    const clockid_t CLOCK_REALTIME
    struct timespec:
        time_t tv_sec
        long tv_nsec
    int clock_gettime(clockid_t, timespec *)


cdef inline long long system_now_ns() noexcept nogil:
    cdef timespec now
    clock_gettime(CLOCK_MONOTONIC, &now)
    return <long long>now.tv_sec * 1000000000 + now.tv_nsec


cdef inline long long system_wall_ms() noexcept nogil:
    cdef timespec now
    clock_gettime(CLOCK_REALTIME, &now)
    return <long long>now.tv_sec * 1000 + now.tv_nsec // 1000000
