"""A word of shared memory by which the kernel reports that a rank begins to end.

A pidfd is ready once all memory of a process has been freed: 25 ms of processor time after a SIGKILL where torch is
imported, ten times that under load. A robust mutex is given up, and who waits for it is woken, before that
(Documentation/locking/robust-futexes.rst of Linux). The node's daemon finds the word by its name in /proc/PID/fd.
"""

# ruff: noqa: PLC0415 - imported where first needed: the programs of a job that do not train shall not pay for it

from __future__ import annotations

import os

from .layout import END_WORD, END_WORD_BYTES, ENV_EPOCH

SHARED = ROBUST = 1
"""PTHREAD_PROCESS_SHARED, PTHREAD_MUTEX_ROBUST."""
MUTEX_BYTES, TID_MASK, WAITED_FOR = 64, 0x3FFFFFFF, 0x80000000
"""More than any pthread_mutex_t; of a futex, see FUTEX_TID_MASK and FUTEX_WAITERS."""


def hold() -> None:
    """Hold the word until this process ends, if it is a rank of a training on several nodes; in its main thread."""
    if ENV_EPOCH not in os.environ or "LOCAL_RANK" not in os.environ or not hasattr(os, "memfd_create"):
        return
    import ctypes
    import fcntl
    import mmap
    import struct
    import threading

    file = os.memfd_create(END_WORD, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(file, END_WORD_BYTES)
    fcntl.fcntl(file, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK)  # the daemon maps it too
    memory = mmap.mmap(file, END_WORD_BYTES)  # keeps a descriptor of its own
    os.close(file)
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(memory))  # the kernel reads it after the interpreter has ended
    mutex, attributes = (ctypes.c_char * MUTEX_BYTES).from_buffer(memory), (ctypes.c_char * MUTEX_BYTES)()
    libc = ctypes.CDLL(None)
    failed = libc.pthread_mutexattr_init(attributes)
    failed = failed or libc.pthread_mutexattr_setpshared(attributes, SHARED)
    failed = failed or libc.pthread_mutexattr_setrobust(attributes, ROBUST)
    failed = failed or libc.pthread_mutex_init(mutex, attributes) or libc.pthread_mutex_lock(mutex)
    (word,) = struct.unpack_from("<I", memory)
    if not failed and word & TID_MASK == threading.get_native_id():  # the C library has the futex first
        struct.pack_into("<I", memory, 0, word | WAITED_FOR)
