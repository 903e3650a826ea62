# threading.get_ident without a Python call, for what is compiled.

cdef extern from "pythread.h" nogil:
    unsigned long thread_ident "PyThread_get_thread_ident" ()
