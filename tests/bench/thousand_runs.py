"""One run of thousand_faults.py: a daemon of its own, one training, one fault, and what was wrong with the outcome."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import zlib
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

from house import House, house
from thousand_kinds import BY_NAME, EVERY_S, stall

from supervisor.control.client import ControlError
from tests.rigs.small_disk import mounted
from tests.rigs.stepped_clock import SteppedClock

TRAINING = Path(__file__).with_name("thousand_training.py")
JOB = "job"
AWAY_S, STOPPED_S, STILL_S = 1.0, 3.0, 4.0
BALLAST_KEEPS_BYTES = 2048
LIMIT_S, LIMIT_STALLS = 90.0, 10.0
SMALL_DISK_MB = 4
KEPT = 12
ERROR_CHARS = 6000
"""With the stacks of a training that does not end."""
ENDING_TIMES = 5.0
"""A process that ends by itself may take so many times the limit of a stall for it.

Lightning's interpreter takes 1.7 s of processor time from SIGTERM to its end, which is 20 s on a machine that is full.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What is to be run."""

    number: int
    kind: str
    framework: str
    at: int
    python: str
    data: str
    stall_s: float
    gpu: int = 0


@dataclass(slots=True, kw_only=True)
class Outcome:
    """What came of it; `wrong` is empty where all was as it must be."""

    number: int
    kind: str
    framework: str
    at: int
    wrong: list[str] = field(default_factory=list)
    found: str = ""
    found_after_s: float | None = None
    reported: list[str] = field(default_factory=list)
    attempts: int = 0
    lost_steps: int | None = None
    lost_s: float | None = None
    allowed_s: float | None = None
    """An interval, the longest step since, and what the slowest snapshot took to be written."""
    within_strictly: bool | None = None
    """Whether no more was lost than an interval and a step; None where nothing was resumed."""
    resumed: str = ""
    """The names of the files that were resumed from."""
    wall_s: float = 0.0
    tail: str = ""
    """The end of the daemon's log and of the output, where something was wrong."""


@dataclass(frozen=True, slots=True)
class Step:
    """A line of the training's own account."""

    at_s: float
    pid: int
    step: int
    finite: bool


def play(plan: Plan) -> Outcome:
    """Run it; whatever fails in the bench itself is told as wrong, too."""
    began_s = _unix_s()
    outcome = Outcome(number=plan.number, kind=plan.kind, framework=plan.framework, at=plan.at)
    place = tempfile.mkdtemp(prefix="thousand-")
    try:
        with ExitStack() as stack:
            run = _Run(plan, Path(place), stack)
            try:
                run.play()
                run.judge(outcome)
            except (AssertionError, ControlError, OSError, ValueError, subprocess.SubprocessError) as error:
                outcome.wrong.append(f"{type(error).__name__}: {str(error)[:ERROR_CHARS]}")
            if outcome.wrong:
                outcome.tail = run.house.read_output()[-5000:]
    finally:
        shutil.rmtree(place, ignore_errors=True)
    outcome.wall_s = round(_unix_s() - began_s, 1)
    return outcome


class _Run:
    """The training with its daemon."""

    def __init__(self, plan: Plan, place: Path, stack: ExitStack) -> None:
        self.plan, self.kind = plan, BY_NAME[plan.kind]
        self.house: House = stack.enter_context(house(place))
        self.folder = place / JOB
        self.folder.mkdir()
        self.saves = place / "saves"
        if self.kind.small_disk:
            stack.enter_context(mounted(self.saves, SMALL_DISK_MB))
        self.clock = SteppedClock(place) if self.kind.clock else None
        self.struck_s: float | None = None
        self.eased = False
        bus = plan.number * 7919 + os.getpid()
        self.card = f"0000:{16 + bus % 200:02x}:{bus // 200 % 32:02x}.0"

    # --- the story ------------------------------------------------------------------------------------------------

    def play(self) -> None:
        """Start it, strike from outside where that is the fault, and wait for the end."""
        if self.plan.framework == "ultralytics":
            shutil.copytree(self.plan.data, self.folder / "data")
            yaml = self.folder / "data/data.yaml"
            yaml.write_text(yaml.read_text().replace(self.plan.data, str(self.folder / "data")))
            shutil.move(self.folder / "data/yolov8n.yaml", self.folder / "yolov8n.yaml")
        self.house.write(self._config())
        self._start()
        limit_s = LIMIT_S + LIMIT_STALLS * self.plan.stall_s
        end_s = _unix_s() + limit_s
        while self._phase() not in ("finished", "failed", "stopped"):
            if _unix_s() > end_s:
                stacks = "\n".join(list_stacks(pid) for pid in self.house.training_pids())
                raise AssertionError(f"not over after {limit_s:.0f} s; it is {self._phase()}\n{stacks}")
            if self.kind.by and self.struck_s is None and self._reached():
                self.struck_s = _unix_s()
                self._strike()
                if self.kind.kernel:  # a step that ended before the kernel's line was written is not after it
                    self.struck_s = _unix_s()
            if self.kind.small_disk and self.struck_s is not None and not self.eased and self._incidents():
                (self.saves / "ballast").unlink()
                self.eased = True
            time.sleep(0.2)
        note = self.folder / "struck"
        if note.exists():
            self.struck_s = float(note.read_text())

    def _start(self) -> None:
        self.house.start(env=None if self.clock is None else self.clock.environment, wait=False)
        self.house.until(lambda: self.house.status() is not None, 60, "the daemon to answer")

    def _phase(self) -> str:
        status = self.house.status()
        return str(status["jobs"][0]["phase"]) if status and status["jobs"] else "unknown"

    def _reached(self) -> bool:
        steps = self.steps()
        return bool(steps) and steps[-1].step >= self.plan.at

    def steps(self) -> list[Step]:
        """Return the training's own account."""
        try:
            rows = [line.split() for line in (self.folder / "steps.log").read_text().split("\n")[:-1]]
        except FileNotFoundError:
            return []
        return [Step(float(at_s), int(pid), int(step), finite == "1") for at_s, pid, step, finite in rows]

    def _incidents(self) -> list[dict[str, Any]]:
        try:
            return self.house.incidents(JOB)
        except ControlError:
            return []

    # --- striking from outside ------------------------------------------------------------------------------------

    def _strike(self) -> None:
        what, _, by = self.kind.by.partition(":")
        if self.clock is not None:
            self.clock.step_to(int(by))
        pid = self.steps()[-1].pid
        match what:
            case "sigterm":
                os.kill(pid, signal.SIGTERM)
            case "sigkill" | "clock_kill":
                os.kill(pid, signal.SIGKILL)
            case "oom_killer":
                self._kernel(f"Out of memory: Killed process {pid} (python) total-vm:9123456kB, anon-rss:7123456kB")
                os.kill(pid, signal.SIGKILL)
            case "disk_full":
                self._fill()
            case "kernel_ring":
                self._kernel(f"amdgpu {self.card}: amdgpu: ring gfx_0.0.0 timeout, signaled seq=114, emitted seq=116")
            case "kernel_other":
                other = f"{self.card[:-1]}1"
                self._kernel(f"amdgpu {other}: amdgpu: ring gfx_0.0.0 timeout, signaled seq=114, emitted seq=116")
            case "kernel_disk":
                self._kernel("I/O error, dev nvme9n1, sector 2048 op 0x1:(WRITE) flags 0x0 phys_seg 1 prio class 2")
            case _:
                self._strike_ours(what)

    def _strike_ours(self, what: str) -> None:
        """Hurt what belongs to the supervisor."""
        daemon = self.house.daemon
        assert daemon is not None
        pids = self.house.training_pids()
        match what:
            case "clock":
                return
            case "daemon_killed":
                self.house.kill()
                time.sleep(AWAY_S)
                self._start()
            case "daemon_stopped":
                _stop_for([daemon.pid], STOPPED_S)
            case "machine_stopped":
                _stop_for([daemon.pid, *pids], STILL_S)
            case "daemon_and_training":
                self.house.kill()
                os.kill(self.steps()[-1].pid, signal.SIGKILL)
                self._start()
            case "power_cut":
                self.house.kill()
                for pid in pids:
                    os.kill(pid, signal.SIGKILL)
                self.house.nothing_runs()
                self._start()
            case "shim_killed":
                os.kill(pids[0], signal.SIGKILL)
            case _:
                raise ValueError(what)

    @staticmethod
    def _kernel(words: str) -> None:
        Path("/dev/kmsg").write_bytes(f"<3>{words}\n".encode())

    def _fill(self) -> None:
        """Leave next to nothing free on the disk that the saves lie on."""
        free_bytes = shutil.disk_usage(self.saves).free
        (self.saves / "ballast").write_bytes(bytes(max(0, free_bytes - BALLAST_KEEPS_BYTES)))

    # --- configuration --------------------------------------------------------------------------------------------

    def _config(self) -> str:
        plan, kind = self.plan, self.kind
        words = [plan.python, str(TRAINING), plan.framework, "by_others" if kind.by else kind.name]
        words += ["--at", str(plan.at), "--folder", str(self.folder), "--epochs", str(kind.epochs)]
        words += ["--every-s", str(kind.every_s), "--workers", str(kind.workers), "--saves", str(self.saves)]
        words += ["--device", "cuda" if kind.gpu else "cpu"]
        env = {
            "OMP_NUM_THREADS": "1", "HOME": self.folder, "YOLO_CONFIG_DIR": self.folder, "YOLO_OFFLINE": "true",
            "HF_HUB_OFFLINE": "1", "CUDA_VISIBLE_DEVICES": plan.gpu if kind.gpu else "",
            "MPLCONFIGDIR": self.folder,
        }  # fmt: skip
        pairs = ", ".join(f'{name} = "{value}"' for name, value in env.items())
        own = plan.framework == "own"
        table = f'env = {{ {pairs} }}\nsnapshot_every_s = {0 if own else EVERY_S}\nconv2d = "off"\n'
        table += f'gpus = ["{self.card}"]\n' if kind.kernel else ""
        table += "gpu_memory_release_s = 2\n" if kind.kernel or kind.gpu else ""
        telemetry = "['nvml', 'nvidia-smi']" if kind.gpu else "['sysfs']"
        head = f"[telemetry]\ninterval_s = 0.5\nsources = {telemetry}\n"
        head += "[kernel_log]\naccept_user_records = true\n" if kind.kernel else ""
        tail = f"[jobs.{JOB}.budget]\nbackoff_s = [0.0]\n{kind.budget}"
        # Saves come so fast that three of them would all be younger than the moment from which a fault is known.
        tail += f"[jobs.{JOB}.checkpoints]\nkeep_newest = {KEPT}\n"
        if own:
            tail += f'paths = ["{self.saves}/*.pt"]\n'
            tail += f"[jobs.{JOB}.resume]\ncommand = {json.dumps([*words, '--resume', '{checkpoint}'])}\n"
        limit_s = plan.stall_s if kind.stands else ENDING_TIMES * plan.stall_s
        rules = {"stall": stall(limit_s), "dead_worker": "hold_s = 3", **kind.rules}
        return head + self.house.job_of(JOB, words, table, **rules) + tail

    # --- judging --------------------------------------------------------------------------------------------------

    def judge(self, outcome: Outcome) -> None:
        """Put down what was found and everything that is not as it must be."""
        kind, steps = self.kind, self.steps()
        incidents, status = self.house.incidents(JOB), self.house.job(JOB)
        flags = self.house.query("SELECT DISTINCT rule, severity FROM flags WHERE job = ?", JOB)
        outcome.reported = sorted(f"{rule}:{severity}" for rule, severity in flags)
        outcome.attempts = status["attempt"]
        if self.struck_s is None:
            outcome.wrong.append("it never struck")
            return
        outlived = self.folder / "outlived"
        if outlived.exists():
            outcome.wrong.append(f"the training outlived its signal: {outlived.read_text()}")
        outcome.wrong += self._class(outcome, incidents)
        if kind.reported is not None and kind.reported not in {rule for rule, _ in flags}:
            outcome.wrong.append(f"{kind.reported} did not tell of it")
        done = (self.folder / "done").exists()
        if status["phase"] != kind.phase or done != (kind.phase == "finished"):
            outcome.wrong.append(f"it is {status['phase']}, {'done' if done else 'not done'}")
        lives = _lives(steps)
        restarts = kind.troubles - (kind.phase == "failed")
        # Where it strikes again at the same step, a resume from the step before makes none.
        if len(lives) != 1 + restarts and not (kind.phase == "failed" and len(lives) == 1):
            outcome.wrong.append(f"{len(lives)} processes made steps, not {1 + restarts}")
        for number, life in enumerate(lives[1:]):
            outcome.wrong += self._resumed(outcome, incidents[number] if number < len(incidents) else {}, life)
        for before, after in pairwise(lives):
            outcome.wrong += self._lost(outcome, before, after)
        outcome.wrong += [f"within a process: {gap}" for life in lives for gap in _gaps(life)]

    def _class(self, outcome: Outcome, incidents: list[dict[str, Any]]) -> list[str]:
        """Return what is wrong with the incidents, in number, class and time."""
        seen = [(incident["rule"], incident["fault"]) for incident in incidents]
        outcome.found = "; ".join(f"{rule} ({fault})" if fault else rule for rule, fault in seen)
        wrong = [
            f"found as {incident['rule']} ({incident['fault']}): {incident['message'][:200]}"
            for incident in incidents
            if (incident["rule"], incident["fault"]) not in self.kind.expected(self.plan.framework)
        ]
        if len(seen) != self.kind.troubles:
            wrong.append(f"{len(seen)} incidents, not {self.kind.troubles}")
        if incidents and self.struck_s is not None and not self.kind.clock:
            outcome.found_after_s = round(incidents[0]["at"] - self.struck_s, 2)
            if outcome.found_after_s < 0:
                wrong.append("stopped before anything had struck")
        return wrong

    def _resumed(self, outcome: Outcome, incident: dict[str, Any], life: list[Step]) -> list[str]:
        """Return what is wrong with the state that a process went on from."""
        wrong = [] if life[0].finite else ["a poisoned state was resumed: loss or weights are no numbers"]
        used = incident.get("resumed_from")
        if used is None:
            return [*wrong, f"resumed from no checkpoint: {incident.get('outcome')}, {incident.get('reason')}"]
        outcome.resumed += f"{Path(used['path']).name} "
        asked = "SELECT DISTINCT verdict FROM checkpoints WHERE job = ? AND path = ?"
        verdicts = {verdict for (verdict,) in self.house.query(asked, JOB, used["path"])}
        if not verdicts & {"proven"}:
            wrong.append(f"resumed from {Path(used['path']).name}, which is {verdicts}")
        return wrong

    def _lost(self, outcome: Outcome, before: list[Step], after: list[Step]) -> list[str]:
        """Return what was lost between two processes beyond the intervals of saving and a step."""
        good = [earlier for earlier in before if not self._spoilt(earlier)]
        last, base = good[-1], after[0].step - 1
        inside = [item for item in good if item.step >= base]
        if base == last.step + 1:
            # It was struck between the step, which the snapshot holds, and its own line about it.
            base = last.step
            inside = good[-1:]
        if base > last.step:
            return [f"it went on from step {base}, beyond step {last.step}"]
        if base < before[0].step - 1 or not inside:
            return [f"it began anew at step {base}"]
        outcome.lost_steps = max(outcome.lost_steps or 0, last.step - base)
        lost_s = last.at_s - inside[0].at_s
        longest_s = max((late.at_s - early.at_s for early, late in pairwise(inside)), default=0.0)
        every_s = EVERY_S
        if self.plan.framework == "own":
            every_s = 10 * max(self.kind.every_s, longest_s)
        strict_s = self.kind.intervals * every_s + longest_s
        allowed_s = strict_s + self._writing_s()
        outcome.lost_s = round(max(outcome.lost_s or 0.0, lost_s), 3)
        outcome.allowed_s = round(allowed_s, 3)
        outcome.within_strictly = outcome.within_strictly is not False and lost_s <= strict_s
        return [f"{last.step - base} steps, {lost_s:.2f} s lost, not {allowed_s:.2f}"] if lost_s > allowed_s else []

    def _spoilt(self, step: Step) -> bool:
        """Whether a step was made after a fault that makes harm of all that comes after it."""
        if not self.kind.spoils:
            return False
        if self.kind.by:
            return self.struck_s is not None and step.at_s > self.struck_s
        return step.step >= self.plan.at

    def _writing_s(self) -> float:
        """Return how long the slowest snapshot took to be written, which goes on beside the training."""
        logs = self.house.state.glob(f"jobs/{JOB}/[0-9]*/run/agent.jsonl")
        output = [json.loads(line) for log in logs for line in log.read_text().splitlines()]
        return max(
            (float(report.get("write_s") or 0.0) for report in output if report["event"] == "checkpoint_saved"),
            default=0.0,
        )


def _lives(steps: list[Step]) -> list[list[Step]]:
    """Return the steps of each process in turn."""
    found: list[list[Step]] = []
    for step in steps:
        if not found or found[-1][-1].pid != step.pid:
            found.append([])
        found[-1].append(step)
    return found


def _gaps(life: list[Step]) -> list[str]:
    return [f"step {late.step} after {early.step}" for early, late in pairwise(life) if late.step != early.step + 1]


def list_stacks(pid: int) -> str:
    """Return where each thread of a process is, as py-spy shows it."""
    command = [str(Path(sys.executable).with_name("py-spy")), "dump", "--nonblocking", "--pid", str(pid)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False).stdout


def _stop_for(pids: list[int], seconds: float) -> None:
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    time.sleep(seconds)
    for pid in pids:
        os.kill(pid, signal.SIGCONT)


def as_line(outcome: Outcome) -> str:
    """Return a line of JSON."""
    return json.dumps(asdict(outcome))


def from_line(line: str) -> Outcome:
    """Return what a line says."""
    return Outcome(**json.loads(line))


def seed_of(*words: object) -> int:
    """Return a number that is the same each time for the same words."""
    return zlib.crc32(" ".join(map(str, words)).encode())


def _unix_s() -> float:
    return time.time()  # noqa: TID251 - compared with the training's own account
