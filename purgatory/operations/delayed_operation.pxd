cimport cython
from purgatory.operations.c_context cimport context_exit, enter_copy
from purgatory.operations.watch_key cimport watch_bytes
from purgatory.timer.system_timer cimport SystemTimer
from purgatory.timer.task cimport TaskArray, TimerTask

cdef bint compiled
cdef Py_ssize_t _NO_LIMIT
cdef object _EXPIRED, _FIRED, _PENDING

cdef class DelayedOperationPurgatory


cdef class DelayedOperation(TimerTask):
    cdef public tuple _keys
    cdef public object _parked_in
    cdef public DelayedOperationPurgatory _purgatory
    cdef readonly object status

    cpdef bint force_complete(self)
    cdef bint _try(self) except -1
    cdef _complete(self)
    cpdef bint _cancel(self, object status)
    @cython.locals(array=TaskArray, purgatory=DelayedOperationPurgatory)
    cpdef bint _settle(self, object status)
    @cython.locals(owner=DelayedOperationPurgatory)
    cdef bint _end_in_own_context(self, object status) except -1
    cpdef bint _end_as(self, object status)
    cdef _listener_context(self)


@cython.final
cdef class Watchers:
    cdef readonly dict operations


cdef class DelayedOperationPurgatory:
    cdef Py_ssize_t _bytes
    cdef Py_ssize_t _delayed
    cdef Py_ssize_t _fired
    cdef tuple _listeners
    cdef dict _outcomes
    cdef Py_ssize_t _watched
    cdef dict _watchers
    cdef public object current_key
    cdef public object ended_in
    cdef public bint is_closed
    cdef public bint keeps_ended_in
    cdef readonly str name
    cdef readonly SystemTimer timer

    cpdef bint try_complete_else_watch(self, DelayedOperation operation, object keys)
    cpdef Py_ssize_t check_and_complete(self, object key)
    @cython.locals(group=Watchers)
    cpdef Py_ssize_t check_up_to(self, object key, Py_ssize_t limit)
    cpdef Py_ssize_t count(self, object key)
    cpdef bint _check(self, DelayedOperation operation, object key)
    cpdef bint _end(self, DelayedOperation operation, object status)
    @cython.locals(given=tuple)
    cdef tuple _checked(self, object keys)
    @cython.locals(watchers=dict, group=Watchers, operations=dict, count=cython.Py_ssize_t)
    cdef Py_ssize_t _watch_key(self, DelayedOperation operation, object key) except -1
    @cython.locals(count=cython.Py_ssize_t)
    cdef _watch(self, DelayedOperation operation, tuple keys)
    @cython.locals(keys=tuple)
    cdef _count(self, DelayedOperation operation)
    @cython.locals(
        keys=tuple, watchers=dict, group=Watchers, operations=dict, count=cython.Py_ssize_t,
    )
    cdef _unwatch(self, DelayedOperation operation)
    cdef _enter(self, object context, object function, tuple arguments)
    cdef _notify_listeners_in(self, context, DelayedOperation operation, tuple keys)
    cpdef _notify_listeners(self, DelayedOperation operation, tuple keys)
