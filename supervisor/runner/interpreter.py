"""Finds the Python interpreter that a command would start, without starting it.

Used by standby_shim.py in the shim's process: standard library alone.
"""

# ruff: noqa: PTH113, PTH116, PTH118, PTH119, PTH123 - as in shim.py: memory for life

from __future__ import annotations

import os

INTERPRETERS = ("python", "pypy")
OPTIONS_WITH_VALUE = ("-W", "-X", "--check-hash-based-pycs")


class RefusedError(Exception):
    """Nothing can stand by, or what stands by will not be the attempt; the text says why, for a person."""


def find(argv: list[str], env: dict[str, str], cwd: str) -> tuple[list[str], list[str]]:
    """Return the command that starts the same interpreter on nothing, and the files that decide which one it is."""
    program = _which(argv[0], env, cwd)
    head = _head(program)
    if not head.startswith(b"#!"):
        options = _options(argv[1:])
        return [_python(program, head), *options, "-c", ""], [program, os.path.realpath(program)]
    words = [os.fsdecode(part) for part in head[2:].partition(b"\n")[0].strip().split(None, 1)]
    if words and os.path.basename(words[0]) == "env" and len(words) == 2:
        words = [_which(words[1], env, cwd)]
    if not words:
        raise RefusedError(f"{program} is not a Python program")
    python = _python(words[0], _head(words[0]))
    return [python, *words[1:], "-c", ""], [program, python, os.path.realpath(python)]


def _options(words: list[str]) -> list[str]:
    """Return the interpreter's own options, which stand before the program."""
    found: list[str] = []
    rest = iter(words)
    for word in rest:
        if not word.startswith("-") or word[1:2] in ("", "c", "m"):
            return found
        found.append(word)
        if word in OPTIONS_WITH_VALUE:
            found.append(next(rest, ""))
    raise RefusedError("the command does not run a Python program")


def _python(path: str, head: bytes) -> str:
    if not head.startswith(b"\x7fELF") or not os.path.basename(path).startswith(INTERPRETERS):
        raise RefusedError(f"{path} is not a Python interpreter")
    return path


def _which(name: str, env: dict[str, str], cwd: str) -> str:
    """Return what exec would find."""
    if os.sep in name:
        return os.path.join(cwd, name)
    for folder in env.get("PATH", os.defpath).split(os.pathsep):
        path = os.path.join(cwd, folder, name)
        if os.access(path, os.X_OK) and os.path.isfile(path):
            return path
    raise RefusedError(f"{name} is not on the job's PATH")


def _head(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read(512)


def mark(path: str) -> tuple[int, ...]:
    """Return what tells a file from a later one in its place; raise OSError where there is none."""
    stat = os.stat(path)
    return stat.st_mtime_ns, stat.st_size, stat.st_ino
