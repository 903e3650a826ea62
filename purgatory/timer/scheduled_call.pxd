cimport cython
from purgatory.timer.task cimport TimerTask


@cython.no_gc
cdef class ScheduledCall(TimerTask):
    cdef readonly tuple args
    cdef readonly object callback
