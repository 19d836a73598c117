"""TorchFT alone: two replicas of one rank, of which one is killed; how long until both make steps again.

python tests/bench/fleet_torchft.py --python PYTHON --times 5      # an interpreter with torch and torchft-nightly

The replica that lives waits for the other one and gives it its state: nothing is saved, and no step is lost. Both are
on this machine, without networks of their own; torchrun starts the killed one again.
"""

# ruff: noqa: T201 - a benchmark prints

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

LIMIT_S = 90.0
STEPS_LEAST = 20
PORT = 29599
STEP_S = 0.05
HEARTBEAT_S, JOIN_S = 5.0, 1.0
"""The lighthouse's own default; for how long it waits for a replica that beats (60 s by default)."""


def train(folder: Path) -> None:
    """Be the one rank of a replica."""
    from datetime import timedelta  # noqa: PLC0415 - of the training's interpreter alone, as what follows

    import torch  # noqa: PLC0415
    import torchft  # type: ignore[import-not-found]  # noqa: PLC0415

    model = torch.nn.Linear(8, 1)
    plain = torch.optim.SGD(model.parameters(), 0.001)

    def load(state: dict[str, object]) -> None:
        model.load_state_dict(state["model"])
        plain.load_state_dict(state["optimizer"])

    manager = torchft.Manager(
        pg=torchft.ProcessGroupGloo(timeout=timedelta(seconds=10)),
        load_state_dict=load,
        state_dict=lambda: {"model": model.state_dict(), "optimizer": plain.state_dict()},
        min_replica_size=1,
        replica_id=os.environ["REPLICA"],
        timeout=timedelta(seconds=10),
    )
    replica, optimizer = torchft.DistributedDataParallel(manager, model), torchft.Optimizer(manager, plain)
    while True:
        optimizer.zero_grad()
        replica(torch.ones(8, 8)).pow(2).mean().backward()
        optimizer.step()
        with (folder / f"steps-{os.environ['REPLICA']}").open("a") as file:
            file.write(f"{time.time_ns() / 1e9:.3f} {os.getpid()} {manager.num_participants()}\n")
        time.sleep(STEP_S)


def read_steps(folder: Path, replica: int) -> list[tuple[float, int, int]]:
    """Return when each step of a replica was made, by which process, among how many replicas."""
    with contextlib.suppress(OSError):
        lines = [line.split() for line in (folder / f"steps-{replica}").read_text().splitlines()]
        return [(float(line[0]), int(line[1]), int(line[2])) for line in lines if len(line) == 3]
    return []


def until_together(folder: Path, killed: int) -> None:
    """Wait until both make steps together, the second one by another process than the killed one."""
    deadline = time.perf_counter() + LIMIT_S
    while time.perf_counter() < deadline:
        both = [read_steps(folder, replica) for replica in (0, 1)]
        if all(len(steps) > STEPS_LEAST and steps[-1][2] == 2 for steps in both) and both[1][-1][1] != killed:
            return
        time.sleep(0.05)
    raise TimeoutError(f"the replicas make no steps together within {LIMIT_S:.0f} s")


def main() -> None:
    """Kill the second replica's rank again and again."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--times", type=int, default=5)
    parser.add_argument("--train", type=Path, help="be a rank, with this folder")
    asked = parser.parse_args()
    if asked.train is not None:
        train(asked.train)
        return
    lighthouse = [str(Path(asked.python).parent / "torchft_lighthouse"), "--min_replicas", "1"]
    lighthouse += ["--bind", f"127.0.0.1:{PORT}", "--join_timeout_ms", f"{JOIN_S * 1000:.0f}"]
    lighthouse += ["--heartbeat_timeout_ms", f"{HEARTBEAT_S * 1000:.0f}"]
    with tempfile.TemporaryDirectory() as place, (Path(place) / "log").open("ab") as log:
        folder, started = Path(place), [subprocess.Popen(lighthouse, stdout=log, stderr=log)]
        env = {**os.environ, "TORCHFT_LIGHTHOUSE": f"http://127.0.0.1:{PORT}", "OMP_NUM_THREADS": "1"}
        for replica in (0, 1):
            words = [asked.python, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "1"]
            words += ["--max-restarts", "100", __file__, "--train", place]
            started.append(subprocess.Popen(words, env={**env, "REPLICA": str(replica)}, stdout=log, stderr=log))
        try:
            measure(folder, asked.times)
        finally:
            for process in reversed(started):
                process.kill()
                process.wait()
            for replica in (0, 1):
                with contextlib.suppress(OSError, IndexError):
                    os.kill(read_steps(folder, replica)[-1][1], signal.SIGKILL)


def measure(folder: Path, times: int) -> None:
    """Print each kill and their median."""
    killed, back = 0, []
    for _ in range(times):
        until_together(folder, killed)
        time.sleep(2.0)
        killed, at_s = read_steps(folder, 1)[-1][1], time.time_ns() / 1e9
        os.kill(killed, signal.SIGKILL)
        until_together(folder, killed)
        alive = next(step[0] for step in read_steps(folder, 0) if step[0] > at_s + 2 * STEP_S)
        again = next(step[0] for step in read_steps(folder, 1) if step[0] > at_s and step[1] != killed)
        back.append(max(alive, again) - at_s)
        print(f"the other one {alive - at_s:.2f} s, both {back[-1]:.2f} s; load {os.getloadavg()[0]:.1f}", flush=True)
    print(
        f"TorchFT alone, killed: n={times}, both step again after {statistics.median(back):.1f} s "
        f"({min(back):.1f}-{max(back):.1f})"
    )


if __name__ == "__main__":
    main()
