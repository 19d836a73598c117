"""`a.py & b.py &` in a shell's command: the attempt lasts until both trainings are over, and helpers end with it."""

from __future__ import annotations

import shlex
import sys

from house import House

TRAINING = """
import sys, time
import rocm_agent
name, steps, every_s = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
for _ in range(steps):
    rocm_agent.step(loss=1.0)
    time.sleep(every_s)
open(name, "w").close()
"""
HELPER = "import time, sys; open(sys.argv[1], 'w').close(); time.sleep(600)"


def test_the_second_training_of_a_shell_goes_on_after_the_first_has_ended(home: House) -> None:
    folder = home.folder
    (folder / "train.py").write_text(TRAINING)

    def begins(*words: object) -> str:
        return shlex.join(map(str, (sys.executable, *words))) + " &"

    first = begins(folder / "train.py", folder / "first", 40, 0.05)
    second = begins(folder / "train.py", folder / "second", 100, 0.2)
    helper = begins("-c", HELPER, folder / "helper")
    home.write(home.job_of("one", ["sh", "-c", f"{helper} {first} sleep 1; {second}"]))
    home.start()
    home.phase("one", "finished", limit_s=120)
    assert all((folder / name).exists() for name in ("first", "second", "helper"))
    kinds = [kind for (kind,) in home.query("SELECT kind FROM decisions WHERE job = 'one' ORDER BY id")]
    assert kinds.count("launch") == 1
    assert "stop" not in kinds
