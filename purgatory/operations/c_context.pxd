# What copy_context, Context.copy and Context.run do, without calls through Python, for what is compiled.

cdef extern from "Python.h":
    object context_copy "PyContext_Copy" (object context)
    object copy_current "PyContext_CopyCurrent" ()
    int context_enter "PyContext_Enter" (object context) except -1
    int context_exit "PyContext_Exit" (object context) except -1


cdef inline enter_copy(context):
    copy = context_copy(context)
    context_enter(copy)
    return copy
