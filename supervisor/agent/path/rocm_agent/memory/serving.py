"""Keeps a probed command loaded: where it first uses the GPU or a loader it is forked, once for each probe.

What the command imports and builds before that is paid for once. Each fork is a training like any other: its own GPU
context, model and optimizer, and what it takes ends with it, whatever has ended it. Until the fork nothing may touch
the GPU or start a thread: neither survives a fork, and a command that did so is probed alone, as before.

A fork that made its steps may go on with another micro-batch (`Server.ask_next`), where the next request allows that.
"""

from __future__ import annotations

import ctypes
import gc
import json
import os
import signal
import sys
import threading
import time
import warnings
from typing import Any, Callable, Dict, List, Optional, Set

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
HANDED_ON = 86
"""Exit status of a fork that has reported, and leaves what is asked next to another."""
LOOK_EVERY_S = 0.005
IDLE_LIMIT_S = 900.0
"""After it a process that waits for a request ends: whoever asked is gone."""
COLLECT_EVERY = 200_000
"""Objects made while a command is loaded: nearly all of those of imports stay, and are passed again and again."""
HARMLESS_THREADS = ("TMonitor",)
"""tqdm's, which sleeps; it is not needed."""


class Server:
    """The forks of one command. Requests and reports are numbered files; request 0 came by the environment."""

    def __init__(self, wanted: Dict[str, Any], adopt: Callable[[Dict[str, Any]], None]) -> None:
        self._adopt = adopt
        self._requests, self._reports = wanted["requests"], wanted["reports"]
        self._wanted = wanted
        self._number = 0
        self._threads = 0
        self._torch: Any = None
        self._set_threads: Any = None
        self._pid = os.getpid()
        self.way = "alone"
        """How the probe under way was begun: "alone", "forked", or "further" in a process that made others."""
        self.why_alone = "the command used neither a GPU nor a loader"
        self._passed = False
        self._began_s = time.perf_counter()
        self._collected_every = gc.get_threshold()
        if gc.isenabled():
            gc.set_threshold(COLLECT_EVERY, *self._collected_every[1:])
        self.loaded_s: Optional[float] = None
        """Seconds from the start of the interpreter until the command first used the GPU or a loader."""
        # NVML counts GPUs without the driver, which must not be asked before a fork (torch 2.0 and later).
        os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")
        # Large pages for weights: they are made, passed on by a fork and copied to the GPU in less time.
        os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")

    def install(self, torch: Any) -> None:
        """Fork at the first use of the GPU or of a loader; until then let no thread be started, and no GPU be asked."""
        self._torch = torch
        self._threads = int(torch.get_num_threads())
        torch.set_num_threads(1)
        self._set_threads, torch.set_num_threads = torch.set_num_threads, self._note_threads
        count_gpus = getattr(torch._C, "_cuda_getDeviceCount", None)
        if count_gpus is not None:
            torch._C._cuda_getDeviceCount = self._count_apart(count_gpus)
        self._fork_before(torch.cuda, "_lazy_init", lambda: True)
        iterators = torch.utils.data.dataloader._BaseDataLoaderIter
        self._fork_before(iterators, "__init__", torch.is_grad_enabled)

    def _fork_before(self, home: Any, name: str, applies: Callable[[], bool]) -> None:
        original = getattr(home, name)

        def forking(*args: Any, **kwargs: Any) -> Any:
            if not self._passed and os.getpid() == self._pid and applies():
                self._passed = True
                self._fork_or_go_on()
            return original(*args, **kwargs)

        setattr(home, name, forking)

    def _count_apart(self, original: Callable[[], int]) -> Callable[[], int]:
        """Have a forked process ask the driver how many GPUs there are: one that has asked cannot be forked."""
        known: List[int] = []

        def count() -> int:
            if self._passed or os.getpid() != self._pid:
                return int(original())
            if not known:
                pid = _fork()
                if pid == 0:
                    found = 0
                    try:
                        found = int(original())
                    finally:
                        os._exit(min(found, 64))
                status = os.waitpid(pid, 0)[1]
                known.append(os.WEXITSTATUS(status) if os.WIFEXITED(status) else 0)
            return known[0]

        return count

    def _fork_or_go_on(self) -> None:
        """Return in each fork, and in this process where it cannot be forked."""
        self.loaded_s = time.perf_counter() - self._began_s
        if gc.get_threshold()[0] == COLLECT_EVERY:
            gc.set_threshold(*self._collected_every)
        why = self._why_no_fork()
        if why is None:
            self._serve()
            self.way, self.why_alone = "forked", ""
        else:
            self.why_alone = why
        self._torch.set_num_threads = self._set_threads
        self._set_threads(self._threads)

    def _note_threads(self, count: int) -> None:
        """Have what the command sets be in force after the fork: a fork waits for ever for threads that it lacks."""
        self._threads = count

    def _why_no_fork(self) -> Optional[str]:
        if os.environ.get("WORLD_SIZE", "1") not in ("", "1"):
            return "the command has several ranks"
        if threading.current_thread() is not threading.main_thread():
            return "a thread of the command's uses the GPU or the loader first"
        names = [thread.name for thread in threading.enumerate() if type(thread).__name__ not in HARMLESS_THREADS]
        if len(names) > 1:
            return "the command had started a thread (%s)" % names[1][:80]
        return None

    # --- in the process that was loaded -------------------------------------------------------------------------------

    def _serve(self) -> None:
        """Fork for one request after the other, and end; return in each fork."""
        _set_process(PR_SET_CHILD_SUBREAPER, 1)
        own = _children()
        write_report(self._wanted["forked"], {})
        number, wanted = 0, self._wanted
        while True:
            sys.stdout.flush()
            sys.stderr.flush()
            pid = _fork()
            if pid == 0:
                self._begin_fork(number, wanted)
                return
            status = os.waitpid(pid, 0)[1]
            _end_others(own)
            while os.path.exists(self._reports % number):
                number += 1
            if not (os.WIFEXITED(status) and os.WEXITSTATUS(status) == HANDED_ON):
                number += self._report_end(number, status)
            following = self._wait_for(number)
            if following is None:
                os._exit(0)
            wanted = following

    def _report_end(self, number: int, status: int) -> bool:
        """Report a fork that ended without a report of its own; return whether it had something to report."""
        if number and not os.path.exists(self._requests % number):
            return False
        if os.WIFSIGNALED(status):
            how = "was killed by signal %d" % os.WTERMSIG(status)
        else:
            how = "ended with status %d" % os.WEXITSTATUS(status)
        problem = "the command %s before its second step" % how
        write_report(self._reports % number, {"problem": problem, "way": "forked"})
        return True

    # --- in a fork ----------------------------------------------------------------------------------------------------

    def _begin_fork(self, number: int, wanted: Dict[str, Any]) -> None:
        parent = self._pid
        _set_process(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(0)
        self._pid, self._number = os.getpid(), number
        self._adopt(wanted)

    def ask_next(self, *, can_go_on: bool) -> None:
        """After a report: adopt the next request where it can be met here, else leave it to the next fork and end."""
        if self.way == "alone":
            os._exit(0)
        wanted = self._wait_for(self._number + 1) if can_go_on else None
        if wanted is None or wanted.get("fresh"):
            os._exit(HANDED_ON)
        self._number += 1
        self.way = "further"
        self._adopt(wanted)

    def _wait_for(self, number: int) -> Optional[Dict[str, Any]]:
        """Return a request; None where none came."""
        until, parent = time.perf_counter() + IDLE_LIMIT_S, os.getppid()
        while time.perf_counter() < until and os.getppid() == parent:
            try:
                with open(self._requests % number, encoding="utf-8") as file:
                    found: Dict[str, Any] = json.load(file)
            except FileNotFoundError:
                time.sleep(LOOK_EVERY_S)
            else:
                return found
        return None


def write_report(path: str, report: Dict[str, Any]) -> None:
    """Put a report in its place as a whole, readable by its owner."""
    draft = path + ".tmp"
    with open(draft, "w", encoding="utf-8") as file:
        json.dump(report, file)
    os.replace(draft, path)


def _fork() -> int:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # Python 3.12 counts the threads of libraries, which end
        return os.fork()


def _set_process(option: int, value: int) -> None:
    ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


def _children() -> Set[int]:
    """Return the children of this process by /proc: loaders' workers of a fork that has ended become its own."""
    own, found = os.getpid(), set()
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        try:
            with open("/proc/%s/stat" % name, "rb") as file:
                parent = int(file.read().rpartition(b")")[2].split()[1])
        except (OSError, ValueError, IndexError):
            continue
        if parent == own:
            found.add(int(name))
    return found


def _end_others(own: Set[int]) -> None:
    """Kill what a fork has left: a worker that inherited its files would hold the GPU's memory."""
    while True:
        left = _children() - own
        if not left:
            return
        for pid in left:
            try:
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
            except (ProcessLookupError, ChildProcessError):
                continue
