"""Two trainings in one job: `status` names the one that is followed, and a finish the one that was lost."""

from __future__ import annotations

import os
import shlex
import signal
import sys
from pathlib import Path

from house import House

TRAINING = """
import os, sys, time
from pathlib import Path
import rocm_agent
name, folder = sys.argv[1], Path(sys.argv[2])
(folder / f"{name}.draft").write_text(str(os.getpid()))
(folder / f"{name}.draft").rename(folder / f"{name}.pid")
if name == "second":
    while not (folder / "first.steps").exists():
        time.sleep(0.05)
for step in range(1, 100000):
    time.sleep(0.05)
    rocm_agent.step(loss=1 / step, step=step)
    (folder / f"{name}.steps").touch()
    if (folder / "finish").exists() or (folder / f"finish-{name}").exists():
        break
rocm_agent.stage("ended")
"""


def read_pid(path: Path) -> int:
    return int(path.read_text())


def test_a_shell_that_starts_two_trainings_has_one_followed_and_a_lost_one_named(home: House) -> None:
    script = home.folder / "training.py"
    script.write_text(TRAINING)
    word = shlex.join([sys.executable, str(script)])
    command = f"{word} first {home.folder} & {word} second {home.folder} & wait"
    home.write(home.job_of("two", ["sh", "-c", command]))
    home.start()
    home.until(lambda: "other_trainings: 2 trainings" in str(home.job("two")["flags"]), 30, "the warning")
    first, second = (read_pid(home.folder / f"{name}.pid") for name in ("first", "second"))
    (flag,) = [flag for flag in home.job("two")["flags"] if flag.startswith("other_trainings")]
    assert f"only that of process {first} is followed: of processes {second} neither" in flag
    os.kill(second, signal.SIGKILL)
    (home.folder / "finish").touch()
    over = home.phase("two", "finished")
    assert f"that of process {second} did not come to its own end" in over["reason"]


def test_a_training_that_was_left_in_the_background_goes_on_after_the_one_that_is_followed(home: House) -> None:
    """`a.py & b.py &` without `wait`: once the first has ended the second is followed, and its end is the attempt's."""
    script = home.folder / "training.py"
    script.write_text(TRAINING)
    word = shlex.join([sys.executable, str(script)])
    command = f"{word} first {home.folder} & {word} second {home.folder} &"
    home.write(home.job_of("two", ["sh", "-c", command]))
    home.start()
    home.until(lambda: "other_trainings: 2 trainings" in str(home.job("two")["flags"]), 30, "the warning")
    claims = "SELECT count(*) FROM events WHERE kind = 'agent_reported' AND body LIKE '%claimed%'"
    (home.folder / "finish-first").touch()
    home.until(lambda: home.query(claims)[0][0] == 2, 60, "the second to be followed")
    assert home.job("two")["phase"] == "running"
    (home.folder / "finish-second").touch()
    over = home.phase("two", "finished")
    assert "did not come to its own end" not in over["reason"]
    home.nothing_runs()
