cimport cython
from purgatory.timer.c_list cimport drop_last, fetch_first, untrack

cdef Py_ssize_t _FEW


@cython.final
cdef class PendingTasks:
    cdef readonly Py_ssize_t count


@cython.final
@cython.no_gc
cdef class TaskArray:
    cdef Py_ssize_t first
    cdef Py_ssize_t holes
    cdef bint is_open
    cdef list items
    cdef object owner
    cdef PendingTasks pending
    cdef Py_ssize_t position

    @cython.locals(rest=list)
    cpdef bint has_tasks(self)
    cpdef list tasks(self)
    cpdef append(self, TimerTask task)
    @cython.locals(items=list, index=cython.Py_ssize_t, holes=cython.Py_ssize_t)
    cpdef remove(self, TimerTask task)
    cdef open(self)
    @cython.locals(items=list, count=cython.Py_ssize_t, index=cython.Py_ssize_t, task=TimerTask)
    cdef close_up(self)
    cdef become_empty(self)


@cython.no_gc
cdef class TimerTask:
    cdef TaskArray _array
    cdef Py_ssize_t _index
    cdef public long long delay_ms
    cdef public long long expiration_ms
