cimport cython
from purgatory.timer.task cimport PendingTasks, TaskArray

cdef Py_ssize_t _ARRAY_SIZE


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
