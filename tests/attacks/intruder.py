"""A user of the machine who owns no training, and attacks the folders and the socket of those that run.

    intruder.py SETTINGS STATE    settings as of the hostile training, and the state directory

It does those actions of the script that need no training, each in the newest attempt's folder of one of the jobs, and
begins anew with others of their kind until it is ended.
"""

import itertools
import json
import random
import signal
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "supervisor/agent/path"))  # the forged words of the trainings need the agent

from attack_plan import Action, from_script  # noqa: E402 (after the path is set)
from mischief import doors, files, processes  # noqa: E402
from mischief.target import Target  # noqa: E402

ACTIONS = {
    **files.ACTIONS,
    **{name: processes.ACTIONS[name] for name in ("socket", "socket_crowd")},
    **{name: doors.ACTIONS[name] for name in ("door", "door_crowd", "tune")},
}

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


def attack(action: Action, turn: int) -> str:
    """Do an action, with other details at each turn; return what it did in words."""
    chance = random.Random(action.seed + turn)
    target = Target(
        folder=newest(chance.choice(["healthy", "hostile"])) / "run",
        given_daemon_pid=1,
        tame=False,
        doors=tuple(settings["doors"]),
        **{name: Path(settings[name]) for name in ("saves", "canary", "canary_folder", "secret", "socket")},
    )
    try:
        return ACTIONS[action.kind](target, chance)
    except Exception as error:  # noqa: BLE001 - what an attack cannot do it leaves
        return f"could not: {type(error).__name__}: {error}"


with Path(settings["said"]).open("a") as story:
    for turn in itertools.count():
        for action in actions:
            story.write(f"{action}: {attack(action, turn)[:300]!r}\n")
            story.flush()
            time.sleep(settings["pace_s"])
