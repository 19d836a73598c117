"""Explains why a program could not be executed, or a folder not be entered, and what to do about it.

One error of exec has many reasons: that of a file that is not there is also that of a script whose interpreter is not.
Used by shim.py in the forked process of a training: imports only the standard library.
"""

# ruff: noqa: PTH100, PTH110, PTH112, PTH114, PTH118, PTH123, PTH208 - as in shim.py

from __future__ import annotations

import errno
import os

UNMOUNTED = "(is its disk mounted?)"
"""Follows the error where a folder is missing, or empty, in which a disk may be mounted later."""
ABSENT = (errno.ENOENT, errno.ENOTDIR)
NAMED_CHARACTERS = 200
FIRST_LINE_BYTES = 256


def explain_folder(error: OSError, path: str) -> str:
    """Return why a process could not enter the folder `path`."""
    if error.errno not in ABSENT:
        return str(error.strerror)
    return explain_absence(error, path) or str(error.strerror)


def explain_program(error: OSError, program: str, search_path: str) -> str:
    """Return why the first word of a command could not be executed; `search_path` is the PATH of its environment."""
    if error.errno in ABSENT and "/" not in program:
        return _explain_unfound(search_path)
    if error.errno in ABSENT:
        return explain_absence(error, program) or _explain_interpreter(error, program)
    if error.errno == errno.EACCES and os.path.isdir(program):
        return f"{error.strerror}: it is a folder"
    if error.errno == errno.EACCES:
        return (
            f"{error.strerror}: make it executable (`chmod +x`), or put its interpreter in front of it in the command"
        )
    if error.errno == errno.ENOEXEC:
        return (
            f"{error.strerror}: begin it with a line such as `#!/bin/sh`, or put its interpreter in front of it in the "
            "command; a binary may be made for another kind of machine"
        )
    return str(error.strerror)


def explain_absence(error: OSError, path: str) -> str | None:
    """Return which part of a path is not there; None where all of it is."""
    above, complete = "/", os.path.abspath(path)
    for name in complete.split("/")[1:]:
        part = os.path.join(above, name)
        if not os.path.exists(part):
            return f"{error.strerror}{_hint_at_mount(above, part, complete)}: there is no {_describe(part, complete)}"
        if part != complete and not os.path.isdir(part):
            return f"{error.strerror}: {part[:NAMED_CHARACTERS]} is a file"
        above = part
    return None


def _describe(part: str, complete: str) -> str:
    named = part[:NAMED_CHARACTERS] if part == complete else f"folder {part[:NAMED_CHARACTERS]}"
    return f"{named}, to which a link of that name leads" if os.path.islink(part) else named


def _hint_at_mount(above: str, part: str, complete: str) -> str:
    """Return a hint where a disk may be missing at the folder `above`, or where the link `part` leads to."""
    try:
        may_come = part != complete or os.path.islink(part) or not os.listdir(above)
    except OSError:
        may_come = False
    return f" {UNMOUNTED}" if may_come else ""


def _explain_unfound(search_path: str) -> str:
    remedy = "use an absolute path or add its directory to the job's PATH"
    missing = [folder for folder in search_path.split(":") if folder.startswith("/") and not os.path.isdir(folder)]
    if not missing:
        return f"not found; {remedy}"
    return f"not found {UNMOUNTED}; its PATH names {', '.join(missing)[:NAMED_CHARACTERS]}, not there; {remedy}"


def _explain_interpreter(error: OSError, program: str) -> str:
    """Return what is missing to run a file that is there."""
    try:
        with open(program, "rb") as file:
            first = file.readline(FIRST_LINE_BYTES)
    except OSError:
        return str(error.strerror)
    words = first[2:].split() if first.startswith(b"#!") else []
    if not words:
        return f"{error.strerror}: the file is there, the loader or interpreter that it names is not"
    if first.endswith(b"\r\n"):
        return f"{error.strerror}: its lines end with CR LF, so that its interpreter is not found; run `dos2unix` on it"
    named = words[0].decode(errors="backslashreplace")
    where = explain_absence(error, named) or f"{error.strerror}: {named[:NAMED_CHARACTERS]} cannot be executed"
    return f"{where}, which its first line names as its interpreter"
