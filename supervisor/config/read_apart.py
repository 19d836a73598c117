"""Reads the configuration in a process of its own, which then ends, and compares it with the settings in force.

A large one takes seconds, in which every other thread of the same process waits its turn for the interpreter: a status
would be answered late and a limit found late. Where a file system stops answering meanwhile, the process is left.
"""

from __future__ import annotations

import os
import pickle
import sys
import threading
import time
from pathlib import Path

from supervisor import programs
from supervisor.children.installed import was_replaced
from supervisor.config.difference import Difference, difference
from supervisor.config.load import Checked, check_if_it_answers
from supervisor.config.problems import Problem
from supervisor.config.settings import Settings
from supervisor.core.sanitize import one_line
from supervisor.shipped import module_command

LIMIT_S = 60.0
PARENT_EVERY_S = 0.5
ANSWER_LIMIT_BYTES = 64 << 20
WHY_CHARS = 300


NO_CHANGES = Difference(applied=(), needs_restart=())


def read_apart(config: Path, in_force: Settings) -> tuple[Checked, Difference]:
    """Read and check the configuration; return it, and how its settings differ from those in force. Never raises."""
    try:
        ran = programs.run(
            [*module_command(__name__), str(config), str(os.getpid())],
            LIMIT_S,
            given=pickle.dumps(in_force),
            environment=os.environ,
            limit_bytes=ANSWER_LIMIT_BYTES,
        )
    except OSError as error:
        return _refuse(config, f"no process could be started for it: {error}", "reload again")
    if ran.status is None:
        return _refuse(config, f"not within {LIMIT_S:.0f} s", "see to its file system, or shorten it")
    if ran.status != 0:
        why = ran.stderr.decode("utf-8", "replace").strip()[-WHY_CHARS:]
        again = "restart the daemon: the package was replaced" if was_replaced() else "reload again"
        return _refuse(config, f"the process that reads it ended with {ran.status}: {why}", again)
    try:
        found: tuple[Checked, Difference] = pickle.loads(ran.stdout)  # noqa: S301 - from a child of ours, over a pipe that only it has
    except Exception as error:  # noqa: BLE001 - whatever the classes of another version make of it
        why = f"what is installed is not what this daemon runs ({one_line(str(error), WHY_CHARS)})"
        return _refuse(config, why, "restart the daemon")
    return found


def _refuse(config: Path, why: str, allowed: str) -> tuple[Checked, Difference]:
    problem = Problem(file=str(config), key="", problem=f"was not read: {why}", allowed=allowed)
    return Checked(settings=None, problems=(problem,)), NO_CHANGES


def main() -> None:
    """Read, compare with the settings on the standard input, and print both; end where who asked has ended."""
    threading.Thread(target=_end_with, args=(int(sys.argv[2]),), daemon=True).start()
    in_force: Settings = pickle.load(sys.stdin.buffer)  # noqa: S301 - from the parent, which is the daemon
    checked, _ = check_if_it_answers(Path(sys.argv[1]))
    changes = NO_CHANGES if checked.settings is None else difference(in_force, checked.settings)
    sys.stdout.buffer.write(pickle.dumps((checked, changes)))


def _end_with(parent: int) -> None:
    """End this process, whatever it reads, once another than `parent` has it as its child."""
    while os.getppid() == parent:
        time.sleep(PARENT_EVERY_S)
    os._exit(1)


if __name__ == "__main__":
    main()
