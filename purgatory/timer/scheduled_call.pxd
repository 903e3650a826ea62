cimport cython
from purgatory.timer.task cimport TimerTask


cdef class ScheduledCall(TimerTask):
    cdef readonly tuple args
    cdef readonly object callback
