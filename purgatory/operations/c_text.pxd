# How the compiled form makes cursors, in a third of the time that formatting takes.

cdef extern from *:
    """
    #include <Python.h>

    /* f"{prefix}{number}" for a prefix of ASCII and a number that is not negative. */
    static inline PyObject *purgatory_numbered(PyObject *prefix, unsigned long long number) {
        char digits[20];
        int first = sizeof digits;
        do {
            digits[--first] = (char) ('0' + number % 10);
            number /= 10;
        } while (number);
        Py_ssize_t size = PyUnicode_GET_LENGTH(prefix);
        PyObject *made = PyUnicode_New(size + sizeof digits - first, 127);
        if (made != NULL) {
            char *text = (char *) PyUnicode_1BYTE_DATA(made);
            memcpy(text, PyUnicode_1BYTE_DATA(prefix), size);
            memcpy(text + size, digits + first, sizeof digits - first);
        }
        return made;
    }
    """
    str numbered "purgatory_numbered" (str prefix, unsigned long long number)
