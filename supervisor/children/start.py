"""The one place where the daemon starts child processes."""

from __future__ import annotations

import errno
import logging
import os
import shutil
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from subprocess import DEVNULL, PIPE, STDOUT
from typing import IO

from supervisor.children.child import Child
from supervisor.children.keeper import Keeper
from supervisor.children.posix_spawn import Program
from supervisor.children.prompt_thread import PromptThread

__all__ = ["DEVNULL", "PIPE", "STDOUT", "keep_apart", "start"]

log = logging.getLogger(__name__)

START_LIMIT_S = 10.0
"""How long a program may take to begin: its file, its directory or its interpreter may lie on a hung file system."""

_keepers: list[Keeper] = []
_refused: list[str] = []
"""Why children are started with copies of this process's files; empty where they are not, or nothing was asked for."""
_stuck: dict[tuple[str, str | None], Child] = {}
"""Children that did not begin, by program and directory: each still has a thread and may be beyond any signal."""


def keep_apart() -> None:
    """Start every child of this process apart from the files that it opens from now on; to be called before the first.

    Where the system refuses that, children are started as before, and it is logged.
    """
    try:
        _keepers[:] = [Keeper()]
    except OSError as error:
        _refused[:] = [str(error)]
        log.warning("children.share_files", extra={"fields": {"why": str(error)}})


def why_not_apart() -> str | None:
    """Return why children begin with copies of this process's files; None where they do not."""
    return _refused[0] if _refused else None


def start(  # noqa: PLR0913 - those of subprocess.Popen that are needed
    command: Sequence[str],
    *,
    stdin: int | IO[bytes] = DEVNULL,
    stdout: int | IO[bytes] = DEVNULL,
    stderr: int | IO[bytes] = DEVNULL,
    cwd: str | os.PathLike[str] | None = None,
    env: Mapping[str, str] | None = None,
    new_session: bool = False,
) -> Child:
    """Start a program and return its process; `stdin`, `stdout` and `stderr` are as those of `subprocess.Popen`.

    Raises OSError where it cannot be started; where it has not begun within START_LIMIT_S, TimeoutError: then it never
    does.
    """
    variables = dict(os.environ) if env is None else env
    program = Program(
        path=find_program(command[0], variables),
        argv=[os.fspath(argument) for argument in command],
        env=variables,
        cwd=None if cwd is None else os.fspath(cwd),
        new_session=new_session,
    )
    child = Child(program)
    _refuse_stuck(program)
    with ExitStack() as opened_for_child, ExitStack() as opened_for_us:
        files = [_open_input(child, stdin, opened_for_child, opened_for_us)]
        files.append(_open_output(child, "stdout", stdout, opened_for_child, opened_for_us))
        files.append(
            files[1] if stderr == STDOUT else _open_output(child, "stderr", stderr, opened_for_child, opened_for_us)
        )
        if not _begin(child, files):
            _stuck[program.path, program.cwd] = child
            raise TimeoutError(errno.ETIMEDOUT, f"it did not begin within {START_LIMIT_S:.0f} s", program.path)
        opened_for_us.pop_all()
    return child


def _refuse_stuck(program: Program) -> None:
    """Raise TimeoutError while an earlier start of this program there is stuck: another would be as well."""
    earlier = _stuck.get((program.path, program.cwd))
    if earlier is None:
        return
    if earlier.stuck:
        raise TimeoutError(errno.ETIMEDOUT, "an earlier start of it has not begun yet", program.path)
    _stuck.pop((program.path, program.cwd), None)


def _begin(child: Child, files: Sequence[int]) -> bool:
    if _keepers:
        return _keepers[0].start(child, files, START_LIMIT_S)

    def start_and_wait() -> None:
        if child.begin(files):
            child.wait_and_report()

    try:
        PromptThread(start_and_wait, "child").start()
    except (RuntimeError, MemoryError) as error:
        raise OSError(errno.EAGAIN, str(error)) from error
    return child.wait_until_begun(START_LIMIT_S)


def find_program(name: str, env: Mapping[str, str]) -> str:
    """Return the path of a program as execvp(3) finds it, in the PATH of its own environment."""
    if "/" in name:
        return name
    found = shutil.which(name, path=os.pathsep.join(os.get_exec_path(env)))
    if found is None:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), name)
    return found


def _open_input(child: Child, given: int | IO[bytes], theirs: ExitStack, ours: ExitStack) -> int:
    if given != PIPE:
        return _open_given(given, theirs)
    read_end, write_end = os.pipe2(os.O_CLOEXEC)
    theirs.callback(os.close, read_end)
    child.stdin = ours.enter_context(os.fdopen(write_end, "wb", buffering=0))
    return read_end


def _open_output(child: Child, name: str, given: int | IO[bytes], theirs: ExitStack, ours: ExitStack) -> int:
    if given != PIPE:
        return _open_given(given, theirs)
    read_end, write_end = os.pipe2(os.O_CLOEXEC)
    theirs.callback(os.close, write_end)
    setattr(child, name, ours.enter_context(os.fdopen(read_end, "rb", buffering=0)))
    return write_end


def _open_given(given: int | IO[bytes], theirs: ExitStack) -> int:
    if given == DEVNULL:
        null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
        theirs.callback(os.close, null)
        return null
    return given if isinstance(given, int) else given.fileno()
