cimport cython
from purgatory.timer.c_list cimport drop_last, fetch_first, untrack

cdef Py_ssize_t _ARRAY_SIZE
cdef Py_ssize_t _FEW

cdef class ArrayList


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
    cdef ArrayList owner
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
    @cython.locals(owner=ArrayList)
    cdef become_empty(self)


@cython.no_gc
cdef class TimerTask:
    cdef TaskArray _array
    cdef Py_ssize_t _index
    cdef public long long delay_ms
    cdef public long long expiration_ms


cdef class ArrayList:
    cdef list arrays
    cdef Py_ssize_t gone
    cdef TaskArray last
    cdef Py_ssize_t opened
    cdef PendingTasks pending

    @cython.locals(last=TaskArray, array=TaskArray)
    cdef TaskArray with_room(self)
    @cython.locals(arrays=list, array=TaskArray)
    cdef TaskArray open_here(self)
    @cython.locals(arrays=list, position=cython.Py_ssize_t, array=TaskArray)
    cdef bint has_tasks_here(self)
    @cython.locals(tasks=list, array=TaskArray)
    cdef list tasks_here(self)
    cpdef drop(self, TaskArray array)
    @cython.locals(
        arrays=list, count=cython.Py_ssize_t, position=cython.Py_ssize_t, array=TaskArray
    )
    cdef _close_up(self)


@cython.final
cdef class TimerTaskList(ArrayList):
    cdef ArrayList _descended
    cdef readonly long long expiration_ms

    @cython.locals(descended=ArrayList, tasks=list)
    cpdef list tasks(self)
    cpdef bint set_expiration(self, long long expiration_ms)
    @cython.locals(array=TaskArray)
    cpdef add(self, TimerTask task)
    @cython.locals(descended=ArrayList)
    cdef TaskArray descend_to(self)
    @cython.locals(descended=ArrayList, array=TaskArray)
    cdef TaskArray open_array(self)
    @cython.locals(task=TimerTask, array=TaskArray)
    cpdef flush(self, object consume)
    @cython.locals(descended=ArrayList)
    cdef bint has_tasks(self)
