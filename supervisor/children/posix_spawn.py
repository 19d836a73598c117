"""posix_spawn(3) of the C library, called without Python's lock.

`subprocess` and `os.posix_spawn` hold that lock until the child has begun its program. A child that is stuck before
(its directory or its program lies on a file system that does not answer) would stop every thread of this process.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

SETSIGDEF, SETSID = 0x04, 0x80
"""Flags of <spawn.h>, the same in glibc and musl."""
OBJECT_BYTES = 1024
"""Room for an object of the C library whose size only its header tells; the largest has 336 bytes."""
CHANGES_DIRECTORY = ("/usr/bin/env", "--chdir")
"""What starts a program in a directory where the C library cannot (glibc before 2.29)."""
IGNORED_BY_PYTHON = (signal.SIGPIPE, signal.SIGXFSZ)

_libc = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """What is to be started."""

    path: str
    argv: Sequence[str]
    env: Mapping[str, str]
    cwd: str | None
    new_session: bool


def spawn(program: Program, files: Sequence[int]) -> int:
    """Start a program and return its process id; returns once the program has begun.

    `files` become its descriptors 0, 1, 2 and so on. Raises OSError, naming what was not found or refused.
    """
    path, argv, cwd = program.path, program.argv, program.cwd
    if cwd is not None and not hasattr(_libc, "posix_spawn_file_actions_addchdir_np"):
        path, argv, cwd = CHANGES_DIRECTORY[0], [*CHANGES_DIRECTORY, cwd, path, *argv[1:]], None
    arguments = _list_of([os.fsencode(argument) for argument in argv])
    variables = _list_of([os.fsencode(name) + b"=" + os.fsencode(value) for name, value in program.env.items()])
    sys.audit("os.posix_spawn", path, argv, program.env)  # as Python's own reports it
    pid = ctypes.c_int()
    with _file_actions(files, cwd) as actions, _attributes(new_session=program.new_session) as attributes:
        error = _libc.posix_spawn(ctypes.byref(pid), os.fsencode(path), actions, attributes, arguments, variables)
    if error:
        refused = path if cwd is None or os.access(cwd, os.X_OK) else cwd
        raise OSError(error, os.strerror(error), refused)
    return pid.value


def _list_of(texts: Sequence[bytes]) -> ctypes.Array[ctypes.c_char_p]:
    """Return texts as C takes them, ended by NULL."""
    if any(b"\0" in text for text in texts):
        raise ValueError("embedded null byte")
    return (ctypes.c_char_p * (len(texts) + 1))(*texts, None)


@contextmanager
def _file_actions(files: Sequence[int], cwd: str | None) -> Iterator[ctypes.Array[ctypes.c_char]]:
    actions = ctypes.create_string_buffer(OBJECT_BYTES)
    _check(_libc.posix_spawn_file_actions_init(actions))
    try:
        for theirs, ours in enumerate(files):
            _check(_libc.posix_spawn_file_actions_adddup2(actions, ours, theirs))
        if hasattr(_libc, "posix_spawn_file_actions_addclosefrom_np"):  # glibc 2.34: what this process inherited, too
            _check(_libc.posix_spawn_file_actions_addclosefrom_np(actions, len(files)))
        if cwd is not None:
            _check(_libc.posix_spawn_file_actions_addchdir_np(actions, os.fsencode(cwd)))
        yield actions
    finally:
        _libc.posix_spawn_file_actions_destroy(actions)


@contextmanager
def _attributes(*, new_session: bool) -> Iterator[ctypes.Array[ctypes.c_char]]:
    attributes = ctypes.create_string_buffer(OBJECT_BYTES)
    _check(_libc.posix_spawnattr_init(attributes))
    try:
        signals = ctypes.create_string_buffer(OBJECT_BYTES)
        _libc.sigemptyset(signals)
        for number in IGNORED_BY_PYTHON:
            _libc.sigaddset(signals, int(number))
        _check(_libc.posix_spawnattr_setsigdefault(attributes, signals))
        # c_short is what the function takes.
        _check(_libc.posix_spawnattr_setflags(attributes, ctypes.c_short(SETSIGDEF | (SETSID if new_session else 0))))
        yield attributes
    finally:
        _libc.posix_spawnattr_destroy(attributes)


def _check(error: int) -> None:
    if error:
        raise OSError(error, os.strerror(error))
