"""A training beside a hostile one: it makes steps, saves, and is hurt at known steps, one way after the other.

    healthy_training.py FOLDER --wound-every STEPS --every-s SECONDS

`steps.log` has each step that it made, `wounds.jsonl` each wound with the Unix time at which it struck.
"""

import argparse
import json
import math
import os
import signal
import struct
import sys
import time
from pathlib import Path

import rocm_agent

WOUNDS = ("kill", "hang", "nan", "exit", "deaf")
KEPT = 4
parser = argparse.ArgumentParser()
parser.add_argument("folder", type=Path)
parser.add_argument("--wound-every", type=int, required=True)
parser.add_argument("--every-s", type=float, required=True)
asked = parser.parse_args()
asked.folder.mkdir(exist_ok=True)
wounds = asked.folder / "wounds.jsonl"


def save(step: int) -> None:
    """Save the step number as the one weight of a safetensors file."""
    path = asked.folder / f"state-{step:08}.safetensors"
    header = json.dumps({"w": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}).encode()
    part = path.with_suffix(".part")
    part.write_bytes(struct.pack("<Q", len(header)) + header + struct.pack("<f", step))
    part.rename(path)
    rocm_agent.checkpoint_saved(str(path), epoch=None, step=step)
    for old in sorted(asked.folder.glob("state-*.safetensors"), key=lambda found: found.stat().st_mtime_ns)[:-KEPT]:
        old.unlink()


def wound(kind: str, step: int) -> None:
    """Write down when it strikes, and strike."""
    with wounds.open("a") as file:
        file.write(json.dumps({"kind": kind, "step": step, "unix_s": time.time()}) + "\n")  # noqa: TID251 - see above
    if kind == "exit":
        sys.exit(7)
    if kind == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if kind == "deaf":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    while kind != "nan":
        time.sleep(3600)


def begin() -> int:
    """Return the step of the checkpoint that it is told to go on from, 0 without one."""
    path = rocm_agent.resume_from()
    return int(struct.unpack("<f", Path(path).read_bytes()[-4:])[0]) if path else 0


struck = len(wounds.read_text().splitlines()) if wounds.exists() else 0
poisoned = False
step = begin()
# Counted by steps that were made, not by their numbers: those come again after a resume.
since = 0
with (asked.folder / "steps.log").open("a") as made:
    while True:
        step, since = step + 1, since + 1
        if since >= asked.wound_every and not poisoned:
            kind = WOUNDS[struck % len(WOUNDS)]
            poisoned = kind == "nan"
            wound(kind, step)
        time.sleep(asked.every_s)
        rocm_agent.step(loss=math.nan if poisoned else 1 / step, step=step)
        made.write(f"{step} {time.time():.3f}\n")  # noqa: TID251 - compared with the record
        made.flush()
        if step % 25 == 0:
            save(step)
        if rocm_agent.save_requested():
            save(step)
