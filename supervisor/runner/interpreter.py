"""Finds the Python interpreter that a command would start, without starting it.

Used by standby_shim.py in the shim's process: imports only the standard library.
"""

# ruff: noqa: PTH113, PTH116, PTH118, PTH119, PTH123 - as in shim.py: memory for life

from __future__ import annotations

import os

INTERPRETERS = ("python", "pypy")
OPTIONS_WITH_VALUE = ("-W", "-X", "--check-hash-based-pycs")


class RefusedError(Exception):
    """A standby cannot be started, or cannot become the attempt; the message says why."""


def find(argv: list[str], env: dict[str, str], cwd: str) -> tuple[list[str], list[str]]:
    """Return the command that starts the same interpreter without a program, and the files that select it."""
    program = _find_program(argv[0], env, cwd)
    head = _read_head(program)
    if not head.startswith(b"#!"):
        options = _parse_options(argv[1:])
        return [_require_python(program, head), *options, "-c", ""], [program, os.path.realpath(program)]
    shebang = [os.fsdecode(part) for part in head[2:].partition(b"\n")[0].strip().split(None, 1)]
    if shebang and os.path.basename(shebang[0]) == "env" and len(shebang) == 2:
        shebang = [_find_program(shebang[1], env, cwd)]
    if not shebang:
        raise RefusedError(f"{program} is not a Python program")
    python = _require_python(shebang[0], _read_head(shebang[0]))
    return [python, *shebang[1:], "-c", ""], [program, python, os.path.realpath(python)]


def _parse_options(arguments: list[str]) -> list[str]:
    """Return the interpreter's options, which precede the program."""
    found: list[str] = []
    rest = iter(arguments)
    for argument in rest:
        if not argument.startswith("-") or argument[1:2] in ("", "c", "m"):
            return found
        found.append(argument)
        if argument in OPTIONS_WITH_VALUE:
            found.append(next(rest, ""))
    raise RefusedError("the command does not run a Python program")


def _require_python(path: str, head: bytes) -> str:
    if not head.startswith(b"\x7fELF") or not os.path.basename(path).startswith(INTERPRETERS):
        raise RefusedError(f"{path} is not a Python interpreter")
    return path


def _find_program(name: str, env: dict[str, str], cwd: str) -> str:
    """Return the path that exec would use."""
    if os.sep in name:
        return os.path.join(cwd, name)
    for folder in env.get("PATH", os.defpath).split(os.pathsep):
        path = os.path.join(cwd, folder, name)
        if os.access(path, os.X_OK) and os.path.isfile(path):
            return path
    raise RefusedError(f"{name} is not on the job's PATH")


def _read_head(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read(512)


def mark(path: str) -> tuple[int, ...]:
    """Return time, size and inode, which change when a file is replaced. Raises OSError if it is missing."""
    stat = os.stat(path)
    return stat.st_mtime_ns, stat.st_size, stat.st_ino
