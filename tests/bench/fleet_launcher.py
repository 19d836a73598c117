"""torchrun whose ranks are forked from it instead of started: torch is imported once on a node, and not by each rank.

    fleet_launcher.py [OPTION OF TORCHRUN ...] SCRIPT [WORD ...]

All else is torchrun's own: its agent, rendezvous and monitoring, and how it ends its ranks. A forked rank is made to
look like a started one: /proc shows its own command line and environment, and the supervisor's agent begins in it as in
a standby.
"""

from __future__ import annotations

import ctypes
import os
import runpy
import signal
import struct
import subprocess
import sys
from pathlib import Path

import torch._dynamo  # noqa: F401 - what the first optimizer of each rank would import
from torch.distributed import run
from torch.distributed.elastic.multiprocessing.subprocess_handler import subprocess_handler

PR_SET_MM, PR_SET_MM_MAP = 35, 14
MM_MAP = struct.Struct("<11QQIi")
"""struct prctl_mm_map: addresses, no auxiliary vector, no other program."""
_shown: list[ctypes.Array[ctypes.c_char]] = []
"""What /proc shows; it lives as long as the process."""


def show(words: list[bytes], entries: list[bytes]) -> None:
    """Have /proc show this command line and environment, see PR_SET_MM_MAP in prctl(2)."""
    fields = Path("/proc/self/stat").read_text(encoding="ascii", errors="replace").rpartition(")")[2].split()
    start_code, end_code, start_stack = (int(fields[number - 3]) for number in (26, 27, 28))
    start_data, end_data, start_brk = (int(fields[number - 3]) for number in (45, 46, 47))
    libc = ctypes.CDLL(None, use_errno=True)
    libc.sbrk.restype = ctypes.c_void_p
    spans: list[int] = []
    for items in (words, entries):
        data = b"".join(item + b"\0" for item in items)
        buffer = ctypes.create_string_buffer(data, len(data))
        _shown.append(buffer)
        spans += [ctypes.addressof(buffer), ctypes.addressof(buffer) + len(data)]
    places = (start_code, end_code, start_data, end_data, start_brk, libc.sbrk(0), start_stack)
    packed = MM_MAP.pack(*places, *spans, 0, 0, -1)
    if libc.prctl(PR_SET_MM, PR_SET_MM_MAP, packed, ctypes.c_ulong(len(packed)), 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl")


class Forked(subprocess.Popen):  # type: ignore[type-arg]  # of torch's interpreter
    """A rank as torchrun starts it, as far as its agent can see."""

    def _execute_child(self, args, executable, preexec_fn, close_fds, pass_fds, cwd, env, *_) -> None:  # type: ignore[no-untyped-def]  # noqa: PLR0917 - as subprocess calls it
        self.pid = os.fork()
        if self.pid == 0:
            become_rank(list(args), env)
        self._child_created = True


def become_rank(words: list[str], env: dict[str, str]) -> None:
    """Run the script in this process, which has just been forked, and end."""
    from rocm_agent import process  # noqa: PLC0415 - where the supervisor's agent is

    status = 1
    try:
        os.setsid()
        for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
            signal.signal(number, signal.SIG_DFL)
        show([os.fsencode(word) for word in words], [os.fsencode(f"{name}={value}") for name, value in env.items()])
        os.environ.clear()
        os.environ.update(env)
        process.begin(os.environ["ROCM_SUPERVISOR_ATTEMPT_DIR"])
        script = next(index for index, word in enumerate(words) if word.endswith(".py"))
        sys.argv[:] = words[script:]
        runpy.run_path(words[script], run_name="__main__")
        status = 0
    except BaseException:  # noqa: BLE001 - as an interpreter ends
        sys.excepthook(*sys.exc_info())
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


if __name__ == "__main__":
    subprocess_handler.Popen = Forked
    run.main(sys.argv[1:])
