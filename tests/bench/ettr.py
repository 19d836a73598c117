"""Effective training time of a real YOLO training under the real daemon, hurt at random moments by mixed faults.

    python tests/bench/ettr.py --train-python PYTHON [--minutes 30] [--faults 12] [--seed 1] [--json FILE]

A YOLOv8n trains on the CPU with one thread and one loader worker. The faults come in random order at random moments;
a stall of the validation strikes the first one after its moment. ETTR is time that brought the training forward over
all time since the first launch, the first set-up included. It is told twice: by `supervisorctl account`, and from the
training's own log of steps, which knows nothing of the daemon.

Every setting of the job is as shipped but one, `snapshot_every_s = "auto"`: the interval then follows from what a
snapshot costs and how often the training fell. No limit is set: those of `stall` are learned while it runs, a thousand
steps and three validations long, and what is found by them comes no sooner than that. The kernel's log is not read. A
killed daemon is started again after the two seconds that systemd takes.

What a fault costs: work lost (made again), down (from its last line to the next launch), start-up (from there to the
end of the first step). `found` is how long after the injection the daemon knew. For one fault an hour the mean cost is
taken, once as measured, and once with the work that is lost, and the snapshots that are taken, at that rate.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import psutil

ROOT = Path(__file__).parents[2]
# The package of the same name that may be installed must not come first.
sys.path[:0] = [str(ROOT), str(ROOT / "tests/e2e"), str(ROOT / "supervisor/agent/path")]

from ettr_faults import APART_S, FAULTS, LEARNED_FROM, ORDERED, SIGNALS, Fault, planned  # noqa: E402 (after the path is set)
from ettr_reckoning import Life, lives, marks, ratio  # noqa: E402 (the same)
from ettr_report import report, say  # noqa: E402 (the same)
from house import House, house  # noqa: E402 (the same)
from rocm_agent.snapshots.interval import optimal_s  # noqa: E402 (the same)

from supervisor.core.stats.median import median  # noqa: E402 (the same)

TRAINING, IMAGES = Path(__file__).with_name("ettr_training.py"), ROOT / "supervisor/demo/images.py"
JOB = "yolo"
DAEMON_BACK_S = 2.0
"""RestartSec of the service."""
RECOVERED_WITHIN_S = 900.0
STANDBY = ["torch", "ultralytics", "ultralytics.models.yolo.detect", "torch._inductor"]
"""The last is what torch imports when ultralytics asks it to be deterministic, which takes as long as torch itself."""


def now() -> float:
    """Return the Unix time: the training's own log and the record are held against it."""
    return time.time()  # noqa: TID251 - see above


class Trial:
    """One training with its faults."""

    def __init__(self, home: House, asked: argparse.Namespace) -> None:
        self.home, self.asked = home, asked
        self.log, self.orders = home.folder / "training.log", home.folder / "orders"
        self.began = self.well_since = 0.0
        self.struck: list[Fault] = []

    def begin(self) -> None:
        """Draw the images, start the daemon and with it the training; return at the first step."""
        asked, folder = self.asked, self.home.folder
        count = ["--train", str(asked.batch * asked.epoch_steps), "--validate", "32", "--size", str(asked.imgsz)]
        say(f"drawing {count[1]} images")
        drawn = [asked.train_python, str(IMAGES), str(folder / "data"), *count]
        subprocess.run(drawn, check=True, stdout=subprocess.DEVNULL)
        self.orders.mkdir()
        self.home.write(self._job())
        self.home.start()
        self.until(lambda: bool(self.steps()), 300, "the first step")
        [(self.began,)] = self.home.query("SELECT launched_unix_s FROM attempts WHERE job = ? AND number = 1", JOB)
        self.tell("the first step is made")

    def _job(self) -> str:
        asked, folder = self.asked, self.home.folder
        command = [asked.train_python, str(TRAINING), "--data", str(folder / "data/data.yaml"), "--folder", str(folder)]
        command += ["--batch", str(asked.batch), "--imgsz", str(asked.imgsz)]
        env = {"OMP_NUM_THREADS": "1", "YOLO_CONFIG_DIR": folder, "YOLO_OFFLINE": "true", "CUDA_VISIBLE_DEVICES": ""}
        words = ", ".join(f'{name} = "{value}"' for name, value in env.items())
        standby = f"standby = true\nstandby_modules = {json.dumps(STANDBY)}\n" if asked.standby else ""
        return (
            f'[jobs.{JOB}]\ncommand = {json.dumps(command)}\nenv = {{ {words} }}\nsnapshot_every_s = "auto"\n{standby}'
        )

    # --- looking --------------------------------------------------------------------------------------------------

    def steps(self) -> list[int]:
        return [mark.pid for mark in marks(self.log) if mark.what == "step"]

    def pid(self) -> int:
        """Return the process that trains."""
        return self.steps()[-1]

    def until(self, question: Callable[[], bool], limit_s: float, what: str) -> None:
        """Wait; the job must not be given up meanwhile."""

        def asked() -> bool:
            status = self.home.status()
            phase = status["jobs"][0]["phase"] if status else "starting"
            if phase in ("failed", "finished"):
                raise AssertionError(f"{JOB} {phase} while waiting for {what}\n{self.home.read_output()}")
            time.sleep(0.2)
            return question()

        self.home.until(asked, limit_s, what)

    def tell(self, text: str) -> None:
        say(f"{now() - self.began:7.1f} s  {text}" if self.began else text)

    # --- hurting --------------------------------------------------------------------------------------------------

    def hurt(self, faults: list[Fault], moments: list[float]) -> None:
        """Have one strike at each moment, and wait after it for the next step, until the time is over."""
        left = list(faults)
        for due_s in moments:
            self._sleep_until(self.began + due_s)
            fault = self._next(left)
            left.remove(fault)
            self._strike(fault)
            if fault.name != "validation_stall":
                self._recovered(fault)
        self._sleep_until(self.began + self.asked.minutes * 60)
        for fault in [item for item in self.struck if item.struck is None]:
            self.until(partial(self._looked, fault), RECOVERED_WITHIN_S, f"{fault.name} to strike")
            self._recovered(fault)

    def _next(self, left: list[Fault]) -> Fault:
        """Return the first that can be found by now by the limits that it is found by; with none, the first."""
        made = Counter(mark.what for mark in marks(self.log))

        def ready(name: str) -> bool:
            what, times = LEARNED_FROM.get(name, ("step", 0))
            return made[what] >= times

        return next((rest for rest in left if ready(rest.name)), left[0])

    def _sleep_until(self, at: float) -> None:
        """Sleep, and until it has trained for a while again; a fault that strikes late is waited for."""
        while True:
            for fault in [item for item in self.struck if item.attempt is None]:
                if self._looked(fault):
                    self._recovered(fault)
            left_s = max(at, self.well_since + APART_S / 2) - now()
            if left_s <= 0:
                return
            time.sleep(min(0.5, left_s))

    def _strike(self, fault: Fault) -> None:
        fault.struck, pid = now(), self.pid()
        self.struck.append(fault)
        self.tell(f"{fault.name}: {'ordered' if fault.name in ORDERED else 'struck'}")
        if fault.name in ORDERED:
            fault.struck = None
            (self.orders / fault.name).touch()
            if fault.name != "validation_stall":
                self.until(lambda: self._looked(fault), 120, f"{fault.name} to strike")
        elif fault.name == "worker_killed":
            psutil.Process(pid).children()[0].kill()
        elif fault.name == "checkpoint_truncated":
            newest = max(
                (self.home.state / "jobs" / JOB / "snapshots").glob("*.pt"), key=lambda item: item.stat().st_mtime
            )
            os.truncate(newest, newest.stat().st_size * 2 // 3)
            os.kill(pid, signal.SIGKILL)
        elif fault.name == "daemon_killed":
            self.home.kill()
            os.kill(pid, signal.SIGKILL)
            time.sleep(DAEMON_BACK_S)
            self.home.start()
        else:
            os.kill(pid, SIGNALS[fault.name])

    def _looked(self, fault: Fault) -> bool:
        note = self.orders / f"{fault.name}.struck"
        if fault.struck is None and note.exists():
            fault.struck = float(note.read_text())
            note.unlink()
        return fault.struck is not None

    def _recovered(self, fault: Fault) -> None:
        struck = fault.struck
        assert struck is not None
        before = [mark.pid for mark in marks(self.log) if mark.at_unix_s <= struck][-1]
        self.until(lambda: self.pid() != before, RECOVERED_WITHIN_S, f"a step after {fault.name}")
        sql = "SELECT MAX(number) FROM attempts WHERE job = ? AND launched_unix_s < ?"
        [(fault.attempt,)] = self.home.query(sql, JOB, struck)
        self.well_since = now()
        self.tell(f"{fault.name}: stepping again after {now() - struck:.1f} s")

    # --- reckoning ------------------------------------------------------------------------------------------------

    def reckoned(self) -> dict[str, Any]:
        """Return all figures as of now."""
        answer = json.loads(self.home.ctl("--json", "account", JOB).stdout)["lifetime"]
        found = lives(marks(self.log))
        incidents = {incident["attempt"]: incident for incident in self.home.incidents(JOB)}
        launches = dict(self.home.query("SELECT number, launched_unix_s FROM attempts WHERE job = ?", JOB))
        lived = {max(number for number, at in launches.items() if at <= match.began_unix_s): match for match in found}
        done = [item for item in self.struck if item.attempt is not None]
        for fault in done:
            self._reckon(fault, lived, incidents, launches)
        meant = {item.attempt for item in done}
        mean_s = sum(item.cost_s for item in done) / max(1, len(done))
        hourly = self._hourly(mean_s - sum(item.lost_s for item in done) / max(1, len(done)))
        return {
            "account": answer,
            "ettr_account": answer["ettr"],
            "ettr_log": ratio(found, answer["began"], answer["ended"]),
            "lost_log_s": sum(match.lost_s for match in found),
            "attempts": len(launches),
            "unmeant": [item["message"] for number, item in incidents.items() if number not in meant],
            "mean_cost_s": mean_s,
            "ettr_hourly_as_measured": 1 - mean_s / 3600,
            **hourly,
            "faults": [{**asdict(item), "cost_s": item.cost_s} for item in done],
        }

    def _reckon(
        self, fault: Fault, lived: dict[int, Life], incidents: dict[int, Any], launches: dict[int, float]
    ) -> None:
        number = fault.attempt
        assert number is not None
        assert fault.struck is not None
        life, after = lived[number], lived[min(entry for entry in lived if entry > number)]
        fault.lost_s, fault.down_s = life.lost_s, launches[number + 1] - life.last_unix_s
        fault.start_s = (after.first_step_unix_s or after.last_unix_s) - launches[number + 1]
        if number in incidents:
            item = incidents[number]
            fault.rule = f"{item['rule']} ({item['fault']})" if item["fault"] else item["rule"]
            fault.found_s, fault.remedy = item["at"] - fault.struck, item["remedy"] or ""

    def _hourly(self, fixed_s: float) -> dict[str, float]:
        """Return the ratio at one fault an hour, `fixed_s` being what each costs beside its lost work."""
        output = [
            json.loads(line) for path in self.home.state.glob(f"jobs/{JOB}/*/run/agent.jsonl") for line in path.open()
        ]
        saved = [item for item in output if item["event"] == "checkpoint_saved" and item.get("kind") == "snapshot"]
        stall_s, write_s = (
            sum(checkpoint[name] for checkpoint in saved) / len(saved) for name in ("stall_s", "write_s")
        )
        every_s = optimal_s(
            median(checkpoint["stall_s"] for checkpoint in saved),
            median(checkpoint["write_s"] for checkpoint in saved),
            3600,
        )
        ettr = 1 - (fixed_s + every_s / 2 + write_s) / 3600 - stall_s / every_s
        reported = {"snapshots": len(saved), "snapshot_stall_s": stall_s, "snapshot_write_s": write_s}
        return {"ettr_hourly": ettr, "hourly_every_s": every_s, **reported}


def main() -> None:
    """Hurt, reckon, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--train-python", required=True)
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--faults", type=int, default=12)
    parser.add_argument("--only", nargs="+", choices=FAULTS, default=list(FAULTS))
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--imgsz", type=int, default=96)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--epoch-steps", type=int, default=500)
    parser.add_argument("--standby", action="store_true", help="a second interpreter waits, imported")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--keep", type=Path, help="an empty folder for everything, which is left there")
    asked = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that nothing is left running
    load = ", ".join(f"{item:.1f}" for item in os.getloadavg())
    say(f"{asked.minutes:g} minutes, {asked.faults} faults, seed {asked.seed}; {os.cpu_count()} cores, load {load}")
    with tempfile.TemporaryDirectory(prefix="ettr-") as place, house(asked.keep or Path(place)) as item:
        trial = Trial(item, asked)
        trial.begin()
        failed = ""
        try:
            trial.hurt(*planned(asked, random.Random(asked.seed)))
        except (AssertionError, OSError, LookupError, ValueError, psutil.Error) as error:
            failed = f"{type(error).__name__}: {error}"
            trial.tell(f"cut short: {failed[:5000]}")
        reported = trial.reckoned()
        with suppress(subprocess.TimeoutExpired):  # what is left then, the house ends
            item.stop()
    met = report(reported) and not failed
    say("cut short, see above: no result" if failed else "all met" if met else "NOT MET")
    if asked.json:
        asked.json.write_text(json.dumps(reported, indent=2) + "\n")
    sys.exit(not met)


if __name__ == "__main__":
    main()
