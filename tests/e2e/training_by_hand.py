"""A training without torch, for stories that need none: steps, checkpoints and wounds by the two-line API."""

import argparse
import ctypes
import json
import math
import os
import signal
import struct
import sys
import time
from pathlib import Path

import rocm_agent

KEPT = 4
parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=100000)
parser.add_argument("--every-s", type=float, default=0.02)
parser.add_argument("--folder", type=Path, required=True)
parser.add_argument("--save-every", type=int, default=25)
parser.add_argument("--save-takes-s", type=float, default=0.0, help="how long saving takes once it is asked for")
parser.add_argument("--stuck-when-resumed", action="store_true", help="hang once before the first step of a resume")
parser.add_argument("--sour", type=int, help="whoever resumes from the checkpoint of this step has lost what it learnt")
parser.add_argument("--in-place", action="store_true", help="save over one file, as ultralytics does")
parser.add_argument("--wound", default="", help="KIND:STEP,... with the kinds of `strike`; once each, KIND! always")
parser.add_argument("--until", type=Path, help="end at the end of a step once this file is there")
parser.add_argument("--pause", default="", help="STEP:FILE, before that step wait for that file")
parser.add_argument("--reads", type=Path, help="a file that each step reads, as a data set that lies elsewhere")
asked = parser.parse_args()


def save(step, spoil=None):
    """Write the step as the one weight of a safetensors file, whole or not at all, and say so."""
    path = asked.folder / ("state.safetensors" if asked.in_place else "state-%06d.safetensors" % step)
    header = json.dumps({"w": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}).encode()
    content = struct.pack("<Q", len(header)) + header + struct.pack("<f", math.nan if spoil == "nans" else step)
    content = {"empty": b"", "truncated": content[:-2]}.get(spoil, content)
    part = path if asked.in_place else path.with_suffix(".part")
    part.write_bytes(content)
    part.rename(path)
    rocm_agent.checkpoint_saved(str(path), epoch=None, step=step)
    # By time: a training begun anew has lower steps than what lies there, and must not clear away its own saves.
    for old in sorted(asked.folder.glob("state-*.safetensors"), key=lambda item: item.stat().st_mtime_ns)[:-KEPT]:
        old.unlink()


def wait_for_ever():
    """Hang, under a name that the evidence has to show."""
    while True:
        time.sleep(3600)


def spin():
    """Hang at 100 % of a processor, under a name that the evidence has to show."""
    while True:
        pass


def wait_in_kernel():
    """Hang in state D, as in a driver, and not for a file system: of one child that reads it is no parent's wait."""
    if os.fork() == 0:
        while True:
            asked.reads.read_bytes()
    # The parent of a vfork waits in the kernel until its child ends.
    if ctypes.CDLL(None).vfork() == 0:
        signal.pause()


def strike(kind, step):
    """Hurt this process."""
    if kind == "spin":
        rocm_agent.stage("validate")
        rocm_agent.stage("step")
        spin()
    if kind == "driver":
        wait_in_kernel()
    if kind == "deaf":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if kind in ("hang", "deaf"):
        wait_for_ever()
    if kind in ("empty", "truncated", "nans"):
        save(step, kind)
    if kind == "all":
        for path in asked.folder.glob("state-*.safetensors"):
            path.write_bytes(b"")
    if kind == "exit":
        sys.exit(7)
    if kind != "nan":
        os.kill(os.getpid(), signal.SIGKILL)


def resumed_step():
    """Return the step that the checkpoint holds, 0 without one."""
    path = rocm_agent.resume_from()
    return int(struct.unpack("<f", Path(path).read_bytes()[-4:])[0]) if path else 0


asked.folder.mkdir(parents=True, exist_ok=True)
stuck = asked.folder / "stuck"
if asked.stuck_when_resumed and rocm_agent.resume_from() and not stuck.exists():
    stuck.touch()
    rocm_agent.stage("warmup")
    wait_for_ever()
wounds = {int(at): kind for kind, at in (item.split(":") for item in asked.wound.split(",") if item)}
pause, _, until = asked.pause.partition(":")
poisoned = False
sourness = 10 if asked.sour and resumed_step() == asked.sour else 0
with open(asked.folder / "steps.log", "a") as made:
    for step in range(resumed_step() + 1, asked.steps + 1):
        while str(step) == pause and not Path(until).exists():
            time.sleep(0.01)
        kind = wounds.get(step, "")
        scar = asked.folder / kind.strip("!")
        if kind and (kind.endswith("!") or not scar.exists()):
            scar.touch()
            poisoned = poisoned or kind == "nan"
            strike(kind.strip("!"), step)
        time.sleep(asked.every_s)
        if asked.reads:
            asked.reads.read_bytes()
        rocm_agent.step(loss=math.nan if poisoned else sourness + 1 / step, step=step)
        made.write("%d\n" % step)
        made.flush()
        if step % asked.save_every == 0:
            save(step)
        if rocm_agent.save_requested():
            time.sleep(asked.save_takes_s)
            save(step)
        if asked.until and asked.until.exists():
            break
print("done")
