"""A user of the machine who owns no training, and attacks the folders and the socket of those that run.

    intruder.py SETTINGS STATE    settings as of the hostile training, and the state directory

It does those actions of the script that need no training, each in the newest attempt's folder of one of the jobs.
"""

import json
import random
import signal
import sys
import time
from pathlib import Path

from attack_plan import from_script
from mischief import files, processes
from mischief.target import Target

NAMES = ("socket", "socket_crowd")
ACTIONS = {**files.ACTIONS, **{name: processes.ACTIONS[name] for name in NAMES}}

settings = json.loads(Path(sys.argv[1]).read_text())
state = Path(sys.argv[2])
signal.signal(signal.SIGURG, signal.SIG_IGN)
signal.signal(signal.SIGPIPE, signal.SIG_IGN)
actions = [action for action in from_script(Path(settings["script"]).read_text()) if action.kind in ACTIONS]


def newest(job: str) -> Path:
    """Return the newest attempt's folder of a job, as far as this user can tell; a guess where the job is closed."""
    try:
        found = [path for path in (state / "jobs" / job).iterdir() if path.name.isdecimal()]
    except OSError:
        found = []
    return max(found, key=lambda path: int(path.name), default=state / "jobs" / job / "1")


with Path(settings["said"]).open("a") as story:
    for action in actions:
        chance = random.Random(action.seed)
        target = Target(
            folder=newest(chance.choice(["healthy", "hostile"])) / "run",
            daemon_pid=1,
            tame=False,
            **{name: Path(settings[name]) for name in ("saves", "canary", "canary_folder", "secret", "socket")},
        )
        try:
            output = ACTIONS[action.kind](target, chance)
        except Exception as error:  # noqa: BLE001 - what an attack cannot do it leaves
            output = f"could not: {type(error).__name__}: {error}"
        story.write(f"{action}: {output[:300]!r}\n")
        story.flush()
        time.sleep(settings["pace_s"])
