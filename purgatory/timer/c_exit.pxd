# Whether the interpreter is on its way out, when what a module knows by name is gone already.

cdef extern from *:
    """
    #include <Python.h>

    static inline int purgatory_is_exiting(void) {
    #if PY_VERSION_HEX >= 0x030D0000
        return Py_IsFinalizing();
    #else
        return _Py_IsFinalizing();
    #endif
    }
    """
    bint is_exiting "purgatory_is_exiting" () noexcept
