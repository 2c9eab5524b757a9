/* The CPython door's parts in the stable ABI, one file each. */
#ifndef RUSHLIGHT_MODULE_H
#define RUSHLIGHT_MODULE_H

#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x030b0000
#include <Python.h>

/* Add what module_rows.c defines; 0, or -1 with an exception set. */
int rl_add_rows(PyObject *module);

#endif
