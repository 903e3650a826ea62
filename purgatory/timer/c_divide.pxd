# Division of times, none of which is negative, by numbers that are powers of two as a rule: then a
# shift takes the place of what a processor does in ten times as long.

cdef extern from *:
    """
    static inline long long purgatory_quotient(long long time, long long by) {
        return by & (by - 1) ? time / by : time >> __builtin_ctzll((unsigned long long) by);
    }

    static inline long long purgatory_remainder(long long time, long long by) {
        return by & (by - 1) ? time % by : time & (by - 1);
    }
    """
    long long quotient "purgatory_quotient" (long long time, long long by) noexcept
    long long remainder "purgatory_remainder" (long long time, long long by) noexcept
