cimport cython
from purgatory.timer.task cimport PendingTasks, TimerTask


@cython.final
cdef class TimerTaskList:
    cdef PendingTasks _pending
    cdef TimerTask _root
    cdef readonly long long expiration_ms

    cdef bint _has_tasks(self)
    @cython.locals(task=TimerTask)
    cpdef list tasks(self)
    cpdef bint set_expiration(self, long long expiration_ms)
    @cython.locals(root=TimerTask, last=TimerTask)
    cpdef add(self, TimerTask task)
    @cython.locals(root=TimerTask, first=TimerTask)
    cpdef add_first(self, TimerTask task)
    @cython.locals(task=TimerTask)
    cpdef TimerTask pop_first(self)
    @cython.locals(task=TimerTask)
    cpdef TimerTask pop_last(self)
    @cython.locals(task=TimerTask)
    cpdef flush(self, object consume)
    cdef _release(self, TimerTask task)
