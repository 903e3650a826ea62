# What the constructor of a named tuple does, without the call, which takes ten times as long: for
# those that each park and fire return.

cdef extern from *:
    """
    #include <Python.h>

    /* As assigning to __class__ does where the layouts are the same. */
    static inline PyObject *purgatory_new_tuple(PyObject *type, PyObject *fields) {
        Py_INCREF(type);
        Py_SET_TYPE(fields, (PyTypeObject *) type);
        Py_INCREF(fields);
        return fields;
    }
    """
    # `fields` becomes that tuple: nobody else may have seen it.
    object new_tuple "purgatory_new_tuple" (object type, tuple fields)
