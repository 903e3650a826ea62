cimport cython
from purgatory.signals.signal cimport Signal


@cython.final
cdef class _KeyHistory:
    cdef long long last_offset
    cdef long long lost_offset
    cdef long long seq
    cdef object signals


cdef class MemorySignals:
    cdef long long _bytes
    cdef object _clock
    cdef long long _count
    cdef str _epoch
    cdef long long _forgotten_offset
    cdef long long _forgotten_seq
    cdef long long _head
    cdef readonly dict _histories
    cdef readonly dict _idle
    cdef str _made_cursor
    cdef long long _made_position
    cdef long long _max_bytes
    cdef long long _max_histories
    cdef long long _max_signals
    cdef long long _max_signals_per_key
    cdef long long _max_value_bytes
    cdef readonly object _order

    @cython.locals(history=_KeyHistory, signal=Signal, encoded=bytes)
    cpdef Signal append(self, key, value)
    cpdef long long head(self)
    cpdef str cursor(self, long long position)
    @cython.locals(history=_KeyHistory, last=Signal)
    cpdef bint has_after(self, key, long long position, Py_ssize_t count)
    @cython.locals(history=_KeyHistory, signal=Signal, only=Signal)
    cpdef list read(self, key, long long position, Py_ssize_t limit)
    @cython.locals(history=_KeyHistory)
    cpdef long long last(self, key)
    @cython.locals(history=_KeyHistory)
    cpdef drop(self, key)
    cpdef bytes encode(self, value)
    @cython.locals(history=_KeyHistory, gone=_KeyHistory)
    cdef _KeyHistory _add_history(self, key)
    @cython.locals(history=_KeyHistory)
    cdef long long _lost_offset(self, key)
    @cython.locals(signal=Signal)
    cdef _trim_first(self, key, _KeyHistory history)
    @cython.locals(history=_KeyHistory, first=Signal)
    cdef _trim_oldest(self)
    @cython.locals(history=_KeyHistory, signal=Signal, alive=list)
    cdef _drop_stale_order(self)
