# What `tuple.__new__` does with a subclass and a tuple, without the call, which takes ten times as
# long: for the named tuples that each park and fire return.

cdef extern from *:
    """
    #include <Python.h>

    static inline PyObject *purgatory_new_tuple(PyObject *type, PyObject *fields) {
    #if PY_VERSION_HEX < 0x030E0000
        Py_ssize_t size = PyTuple_GET_SIZE(fields);
        PyObject *made = ((PyTypeObject *) type)->tp_alloc((PyTypeObject *) type, size);
        if (made != NULL) {
            for (Py_ssize_t index = 0; index < size; index++) {
                PyObject *field = PyTuple_GET_ITEM(fields, index);
                Py_INCREF(field);
                PyTuple_SET_ITEM(made, index, field);
            }
        }
        return made;
    #else
        /* From 3.14 on a tuple keeps its hash, where nobody else should write. */
        return PyObject_CallMethod((PyObject *) &PyTuple_Type, "__new__", "OO", type, fields);
    #endif
    }
    """
    object new_tuple "purgatory_new_tuple" (object type, tuple fields)
