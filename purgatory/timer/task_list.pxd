cimport cython
from purgatory.timer.array_list cimport ArrayList
from purgatory.timer.task cimport TaskArray, TimerTask


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
