cimport cython
from purgatory.timer.task cimport ArrayList, PendingTasks, TaskArray, TimerTask, TimerTaskList
from purgatory.timer.c_divide cimport quotient, remainder
from purgatory.timer.c_list cimport fetch_ahead

cdef Py_ssize_t _ARRAY_SIZE


@cython.final
cdef class TimingWheel:
    cdef list _buckets
    cdef readonly PendingTasks pending
    cdef readonly long long current_ms
    cdef readonly long long interval_ms
    cdef readonly TimingWheel lower
    cdef readonly TimingWheel overflow
    cdef readonly list queue
    cdef readonly long long tick_ms
    cdef readonly long long wheel_size

    @cython.locals(expiration_ms=cython.longlong, wheel=TimingWheel)
    cpdef bint add(self, TimerTask task)
    @cython.locals(tick=cython.longlong, index=cython.Py_ssize_t, bucket=TimerTaskList, made=TimerTaskList)
    cpdef TimerTaskList bucket_for(self, long long expiration_ms)
    @cython.locals(bucket=TimerTaskList)
    cpdef TimerTaskList take(self, long long start_ms)
    @cython.locals(
        lower=TimingWheel, tick_ms=cython.longlong, wheel_size=cython.longlong, buckets=list,
        moved=cython.longlong, array=TaskArray, items=list, first=cython.longlong,
        end=cython.longlong, index=cython.longlong, task=TimerTask, expiration_ms=cython.longlong,
        finer=TimerTaskList, descended=ArrayList, target=TaskArray, places=list,
        place=cython.Py_ssize_t, is_compiled_form=cython.bint,
    )
    cpdef long long cascade(self, TimerTaskList bucket, long long limit)
    @cython.locals(wheel=TimingWheel)
    cpdef advance_clock(self, long long time_ms)
    @cython.locals(queue=list, start_ms=cython.longlong, wheel=TimingWheel)
    cpdef next_expiration_ms(self)
    @cython.locals(queue=list)
    cpdef unqueue(self, long long start_ms)
    @cython.locals(wheel=TimingWheel)
    cpdef drop(self, long long start_ms)
    @cython.locals(tasks=list, taken=list, task=TimerTask, array=TaskArray)
    cpdef list clear(self)
    @cython.locals(bucket=TimerTaskList)
    cdef TimerTaskList _peek(self, long long start_ms)
    cdef TimingWheel _add_overflow(self)
