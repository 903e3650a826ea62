# What the compiled form does with the list of an array, beyond what Python can say.

cdef extern from *:
    """
    #include <Python.h>

    /* A list that the collector does not know is no less a list. */
    static inline void purgatory_untrack(PyObject *items) {
        PyObject_GC_UnTrack(items);
    }

    /* As pop(), but that a short list keeps its memory: one that has a task by turns would get it
       and give it back again and again, which takes longer than all else. */
    static inline void purgatory_drop_last(PyObject *items) {
        Py_ssize_t last = PyList_GET_SIZE(items) - 1;
        PyObject *task = PyList_GET_ITEM(items, last);
        Py_SET_SIZE((PyVarObject *) items, last);
        Py_DECREF(task);
    }

    /* Ask the memory for a task, which may lie on two lines of a cache, before it is needed: to wait
       for it takes as long as all that is done with it. */
    static inline void purgatory_fetch(PyObject *items, Py_ssize_t index) {
        if (index < PyList_GET_SIZE(items)) {
            char *task = (char *) PyList_GET_ITEM(items, index);
            __builtin_prefetch(task, 1);
            __builtin_prefetch(task + 40, 1);
        }
    }

    /* A guess: what is done with so many tasks takes longer than the memory does. Other
       distances were not measured. */
    #define PURGATORY_AHEAD 12

    static inline void purgatory_fetch_ahead(PyObject *items, Py_ssize_t index) {
        purgatory_fetch(items, index + PURGATORY_AHEAD);
    }

    static inline void purgatory_fetch_first(PyObject *items) {
        for (Py_ssize_t index = 0; index < PURGATORY_AHEAD; index++) {
            purgatory_fetch(items, index);
        }
    }
    """
    void untrack "purgatory_untrack" (list items)
    void drop_last "purgatory_drop_last" (list items)
    void fetch_ahead "purgatory_fetch_ahead" (list items, Py_ssize_t index) noexcept
    void fetch_first "purgatory_fetch_first" (list items) noexcept
