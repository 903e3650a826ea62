cimport cython
from purgatory.timer.c_clock cimport system_now_ns
from purgatory.timer.c_divide cimport quotient, remainder
from purgatory.timer.c_exit cimport is_exiting
from purgatory.timer.c_list cimport fetch_ahead
from purgatory.timer.scheduled_call cimport ScheduledCall
from purgatory.timer.task cimport PendingTasks, TaskArray, TimerTask, TimerTaskList
from purgatory.timer.wheel cimport TimingWheel

cdef long long NS_PER_MS
cdef long long NOT_SCHEDULED
cdef Py_ssize_t _ARRAY_SIZE
cdef long long _MAX_DELAY_MS


cdef class SystemTimer:
    cdef list _buckets
    cdef object _cascading
    cdef long long _ceiling_ms
    cdef long long _ceiling_ns
    cdef object _clock
    cdef TimerTaskList _due_now
    cdef long long _floor_ns
    cdef bint _is_advancing
    cdef bint _is_system
    cdef object _now_ns
    cdef object _ready
    cdef long long _span_ms
    cdef long long _tick_ms
    cdef list _upper_buckets
    cdef long long _upper_from_ms
    cdef TimingWheel _wheel
    cdef long long _wheel_size
    cdef public long long cascaded
    cdef public long long longest_lateness_ms
    cdef public object on_earlier

    @cython.locals(
        delay_ms=cython.longlong, array=TaskArray, now_ns=cython.longlong,
        expiration_ms=cython.longlong, tick_ms=cython.longlong, tick=cython.longlong,
        buckets=list, bucket=TimerTaskList, items=list, index=cython.Py_ssize_t,
    )
    cpdef add(self, TimerTask task)
    @cython.locals(call=ScheduledCall)
    cdef ScheduledCall _new_call(self, long long delay_ms, object callback, tuple args)
    cdef _add_at_once(self, TimerTask task)
    @cython.locals(wheel=TimingWheel, now_ms=cython.longlong)
    cdef long long _settle_clock(self, long long now_ns)
    @cython.locals(
        array=TaskArray, items=list, pending=PendingTasks, first=cython.longlong,
        end=cython.longlong, index=cython.longlong, task=TimerTask, call=ScheduledCall, args=tuple,
        count=cython.longlong, is_over=cython.bint, is_compiled_form=cython.bint,
    )
    cdef long long _run_some(self, TimerTaskList bucket, long long limit)
    cdef _note_lateness(self, TimerTaskList bucket)
    cdef _log_failure(self, TimerTask task)
    @cython.locals(wheel=TimingWheel, queue=list)
    cpdef _place(self, TimerTask task)
    cdef _place_due_now(self)
    cdef _open_due_now(self)
    @cython.locals(
        lowest=TimingWheel, queue=list, start_ms=cython.longlong, wheel=TimingWheel,
        bucket=TimerTaskList, moved=cython.longlong,
    )
    cdef long long _open_bucket(self, long long now_ms, long long limit)
    @cython.locals(wheel=TimingWheel, bucket=TimerTaskList)
    cdef _take_upper(self, long long start_ms)
    cdef _catch_up(self, long long now_ms)
    @cython.locals(wheel=TimingWheel)
    cdef _advance_wheel(self, long long time_ms)
