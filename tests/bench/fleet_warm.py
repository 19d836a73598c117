"""torchrun's place on a node, with ranks forked from an interpreter that has imported torch: a launch takes a second.

    fleet_warm.py SOCKET --nproc-per-node N SCRIPT [WORD ...]

What is started here are the places of the ranks: small processes with a rank's environment, which the supervisor takes
for the ranks. The rank of each is forked by the interpreter at SOCKET (`tests/rigs/warm.py`). It ends with its place,
by SIGKILL from the kernel (F_SETSIG on a pipe that only the place holds open), and the place ends as its rank has. How
torchrun itself starts and ends ranks is for the runs without this.
"""

# ruff: noqa: T201 - a launcher reports as torchrun does

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from tests.rigs.warm import READ_ON_IMPORT, WarmInterpreter  # noqa: E402 - a program, started by its path

LOOK_EVERY_S = 0.02
BECOME = """
import fcntl, os, runpy, select, signal, sys
fcntl.fcntl(0, fcntl.F_SETOWN, os.getpid())
fcntl.fcntl(0, fcntl.F_SETSIG, signal.SIGKILL)
fcntl.fcntl(0, fcntl.F_SETFL, fcntl.fcntl(0, fcntl.F_GETFL) | os.O_ASYNC)
if select.select([0], [], [], 0)[0]:
    os._exit(1)  # its place has ended meanwhile
del sys.argv[0]
sys.path[0] = os.path.dirname(sys.argv[0])
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def launch(size: int, words: list[str]) -> int:
    """Start the places of this node's ranks; return 1 where one fails, and end the others then."""
    node, nodes = int(os.environ["PET_NODE_RANK"]), int(os.environ["PET_NNODES"])
    places = []
    for local in range(size):
        number = {"RANK": node * size + local, "LOCAL_RANK": local, "LOCAL_WORLD_SIZE": size}
        own = {name: str(value) for name, value in {**number, "WORLD_SIZE": nodes * size}.items()}
        places.append(subprocess.Popen([sys.executable, "-S", __file__, *words], env={**os.environ, **own}))
    while any(place.poll() is None for place in places) and not any(place.poll() for place in places):
        time.sleep(LOOK_EVERY_S)
    for local, place in enumerate(places):
        if place.poll():
            print(f"failed (exitcode: {place.returncode}) local_rank: {local} (pid: {place.pid}) of binary", flush=True)
            for other in places:
                other.terminate()
            return 1
    return 0


def be_place(interpreter: str, words: list[str]) -> int:
    """Have the rank of this place forked, pass on what it writes, and end as it does."""
    env = {name: value for name, value in os.environ.items() if name not in READ_ON_IMPORT}
    own = Path(sys.executable)  # that of the rank is the one that is asked
    rank = WarmInterpreter(own, Path(interpreter)).start([own, "-c", BECOME, *words], env, Path.cwd())
    for line in rank.stdout:
        print(line, end="", flush=True)
    status = rank.wait()
    if status < 0:
        os.kill(os.getpid(), signal.Signals(-status))
    return status


def main() -> int:
    """Be the launcher, or in its children a place."""
    interpreter, option, size, *words = sys.argv[1:]
    if "LOCAL_RANK" in os.environ:
        return be_place(interpreter, words)
    assert option == "--nproc-per-node"
    return launch(int(size), [interpreter, option, size, *words])


if __name__ == "__main__":
    sys.exit(main())
