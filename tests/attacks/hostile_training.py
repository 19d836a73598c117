"""A training that attacks its supervisor by a script, one action after the other, over all its attempts.

    hostile_training.py SETTINGS    a JSON file: script, progress, pace_s and the fields of `Ground`

What it is about to do is written down before it does it: an action that ends the attempt is not done twice.
"""

import json
import os
import random
import signal
import sys
import time
from pathlib import Path

import rocm_agent
from attack_plan import from_script
from mischief import ACTIONS
from mischief.target import Target

settings = json.loads(Path(sys.argv[1]).read_text())
target = Target(
    folder=Path(os.environ["ROCM_SUPERVISOR_ATTEMPT_DIR"]),
    tame=settings["tame"],
    doors=tuple(settings["doors"]),
    given_daemon_pid=settings["daemon_pid"],
    **{name: Path(settings[name]) for name in ("saves", "canary", "canary_folder", "secret", "socket")},
)
actions = from_script(Path(settings["script"]).read_text())
progress = Path(settings["progress"])
signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # children are reaped by nobody
signal.signal(signal.SIGURG, signal.SIG_IGN)
signal.signal(signal.SIGPIPE, signal.SIG_IGN)
target.saves.mkdir(exist_ok=True)


def done() -> int:
    """Return how many actions were begun, by this attempt and those before."""
    try:
        return progress.read_bytes().count(b"\n")
    except FileNotFoundError:
        return 0


with progress.open("a") as record:
    for number in range(done(), len(actions)):
        if not target.folder.exists():
            os._exit(3)  # it took its own folder away; the next attempt goes on in a new one
        action = actions[number]
        record.write(f"{time.time():.3f} {number} {action}\n")  # noqa: TID251 - compared with what is observed
        record.flush()
        try:
            output = ACTIONS[action.kind](target, random.Random(action.seed))
        except Exception as error:  # noqa: BLE001 - what an attack cannot do it leaves
            output = f"could not: {type(error).__name__}: {error}"
        with Path(settings["said"]).open("a") as story:
            story.write(f"{number} {action}: {output[:300]!r}\n")
        rocm_agent.step(loss=0.5)
        time.sleep(settings["pace_s"])
while True:  # quiet from here on, until it is ended
    time.sleep(0.1)
    rocm_agent.step(loss=0.5)
