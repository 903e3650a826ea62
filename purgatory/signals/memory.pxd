cimport cython
from purgatory.operations.c_text cimport numbered
from purgatory.timer.c_clock cimport system_wall_ms

cdef bint compiled
cdef frozenset _SCALARS


@cython.final
cdef class Signal:
    cdef readonly object key
    cdef readonly long long seq
    cdef readonly long long offset
    cdef readonly long long at_ms
    cdef readonly bytes encoded
    cdef Signal _older
    cdef Signal _newer
    cdef Signal _older_of_key
    cdef Signal _newer_of_key
    cdef str _owner


@cython.locals(signal=Signal)
cpdef Signal _unlinked(key, long long seq, long long offset, long long at_ms, bytes encoded)


@cython.final
cdef class _KeyHistory:
    cdef Py_ssize_t count
    cdef long long last_offset
    cdef long long lost_offset
    cdef Signal newest
    cdef Signal oldest
    cdef long long seq


@cython.final
cdef class _Share:
    cdef long long bytes
    cdef Py_ssize_t count
    cdef Signal newest
    cdef Signal oldest


cdef class MemorySignals:
    cdef long long _bytes
    cdef object _clock
    cdef long long _count
    cdef Signal _decoded
    cdef str _epoch
    cdef long long _forgotten_offset
    cdef long long _forgotten_seq
    cdef long long _head
    cdef readonly bint is_shared
    cdef readonly dict _histories
    cdef readonly dict _idle
    cdef bint _is_system
    cdef _Share _largest
    cdef str _cached_cursor
    cdef long long _cached_position
    cdef long long _max_bytes
    cdef long long _max_histories
    cdef long long _max_signals
    cdef long long _max_signals_per_key
    cdef long long _max_value_bytes
    cdef Signal _newest
    cdef str _prefix
    cdef dict _shares
    cdef _Share _unowned
    cdef object _value

    @cython.locals(
        history=_KeyHistory, share=_Share, signal=Signal, encoded=bytes, at_ms=cython.longlong,
    )
    cpdef Signal append(self, key, value, owner=*)
    @cython.locals(history=_KeyHistory, share=_Share, signal=Signal)
    cpdef Signal replicate(
        self, key, long long seq, long long offset, long long at_ms, bytes encoded,
        long long previous, owner=*,
    )
    @cython.locals(newest=Signal, previous=Signal, size=cython.longlong)
    cdef _link(self, Signal signal, _KeyHistory history, _Share share)
    cpdef object value(self, Signal signal)
    cpdef long long head(self)
    cpdef long long head_of(self, key)
    @cython.locals(history=_KeyHistory)
    cpdef long long earliest(self, key)
    @cython.locals(made=str)
    cpdef str cursor(self, long long position)
    @cython.locals(history=_KeyHistory, newest=Signal, signal=Signal)
    cpdef bint has_after(self, key, long long position, Py_ssize_t count)
    @cython.locals(signal=Signal, unread=list)
    cpdef list read(self, key, long long position, Py_ssize_t limit)
    @cython.locals(history=_KeyHistory, signal=Signal, first=Signal)
    cpdef Signal first_after(self, key, long long position)
    @cython.locals(history=_KeyHistory)
    cpdef long long last(self, key)
    @cython.locals(history=_KeyHistory)
    cpdef drop(self, key)
    cpdef drop_at(self, key, long long offset)
    @cython.locals(history=_KeyHistory)
    cpdef lose_at(self, key, long long offset)
    cpdef skip_to(self, long long offset)
    cpdef forget_through(self, long long offset)
    cpdef drop_all(self, long long offset)
    @cython.locals(share=_Share)
    cpdef bint trim_through(self, long long position, long long limit)
    cpdef bytes encode(self, value)
    @cython.locals(history=_KeyHistory, gone=_KeyHistory)
    cdef _KeyHistory _add_history(self, key)
    @cython.locals(
        share=_Share, largest=_Share, by_bytes=cython.bint, total=cython.longlong,
        shares=cython.longlong, taken=cython.longlong, most=cython.longlong,
    )
    cdef _Share _crowding(self, _Share newest)
    @cython.locals(oldest=Signal)
    cdef _trim_oldest(self, _Share share)
    @cython.locals(
        signal=Signal, older=Signal, newer=Signal, owner=str, share=_Share,
        size=cython.longlong,
    )
    cdef _trim_first(self, _KeyHistory history)
