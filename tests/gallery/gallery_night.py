"""One script through one night: it is hurt again and again from outside, and every answer is put to the test."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import time
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any

import psutil
from gallery_rows import Row, obtain

from tests.e2e.house import House

HERE = Path(__file__).parent
LIMIT_S = 150.0
CLOSE_STEPS = 1
"""A file's time and a step's time may be told apart by so much: a save takes place between two steps."""


@dataclass
class Wound:
    """What was done to a training, what was told, and what was true."""

    kind: str
    reported: str = ""
    """Rule and fault, or nothing where nothing was told."""
    message: str = ""
    found_s: float | None = None
    warned_s: float | None = None
    """When a stopped process was told as such, which comes before anything is done about it."""
    outcome: str = ""
    resumed_from: str | None = None
    resumed_step: int | None = None
    remedy: str | None = None
    lost_steps: int | None = None
    lost_truly: int | None = None
    confirmed: bool | None = None
    problem: str = ""

    @property
    def lost(self) -> str:
        """Whether the lost steps were told right, told wrong or not known."""
        if self.lost_steps is None:
            return "unknown"
        if self.lost_truly is None:
            return "unchecked"
        return "right" if abs(self.lost_steps - self.lost_truly) <= CLOSE_STEPS else "wrong"


@dataclass
class Night:
    """What one row came to."""

    row: str
    title: str
    hooked: str = ""
    healthy: str = ""
    false_alarms: list[str] = field(default_factory=list)
    wounds: list[Wound] = field(default_factory=list)
    problem: str = ""
    seconds: float = 0.0

    def save(self, path: Path) -> None:
        """Write it down."""
        path.write_text(json.dumps({**asdict(self), "lost": [wound.lost for wound in self.wounds]}, indent=1) + "\n")


class Truth:
    """The steps that the injections counted, and where each attempt truly began."""

    def __init__(self, folder: Path) -> None:
        self._log = folder / "steps"
        self._bases: dict[int, int | None] = {1: 0}

    def times(self, attempt: int) -> list[float]:
        """Return when rank 0 made each of its steps in an attempt."""
        try:
            lines = [line.split() for line in self._log.read_text().split("\n")[:-1]]
        except FileNotFoundError:
            return []
        return [float(at) for number, rank, at in lines if (int(number), rank) == (attempt, "0")]

    def step(self, attempt: int, until: float | None = None) -> int | None:
        """Return the step of the whole training that an attempt had made at a time, or at its end."""
        base = self._bases.get(attempt)
        times = self.times(attempt)
        if base is None or (not times and until is None):
            return None
        return base + sum(1 for at in times if until is None or at <= until)

    @staticmethod
    def attempt_at(at: float, launched: list[float]) -> int:
        """Return the attempt that was running at a time, by when each was launched; one may save before it steps."""
        return max((number for number, began in enumerate(launched, 1) if began <= at), default=1)

    def begin(self, attempt: int, step: int | None) -> None:
        """Note the step from which an attempt goes on."""
        self._bases[attempt] = step


class Play:
    """Puts a row into a house and hurts it."""

    def __init__(self, row: Row, house: House, python: Path, sources: Path, rest_s: float = 0.0) -> None:
        self.row, self.house, self.python, self.rest_s = row, house, python, rest_s
        self.name = row.name
        self.injections = house.folder / "injections"
        self.truth = Truth(self.injections)
        self.night = Night(row.name, row.title)
        self._known_saves: dict[str, int | None] = {}
        self._src = self._lay_out(sources)

    # --- the job --------------------------------------------------------------------------------------------------

    def _lay_out(self, sources: Path) -> Path:
        """Copy the script's folders, and draw what it trains on."""
        src = self.house.folder / "src"
        self.injections.mkdir()
        src.mkdir()
        if self.row.source is not None:
            origin = obtain(self.row.source, sources)
            for path in self.row.source.paths:
                _copy(origin / path, src / path)
        for kind, place in self.row.data.items():
            (src / place).parent.mkdir(parents=True, exist_ok=True)
            command = [str(self.python), str(HERE / "draw_data.py"), kind, str(src / place)]
            subprocess.run(command, check=True, env={**os.environ, "HF_HUB_OFFLINE": "1"})
        return src

    def _fill(self, words: tuple[str, ...]) -> list[str]:
        places = {"{python}": str(self.python), "{bin}": str(self.python.parent), "{src}": str(self._src)}
        filled = []
        for word in words:
            for name, value in places.items():
                word = word.replace(name, value)  # noqa: PLW2901 - one placeholder after the other
            filled.append(word)
        return filled

    def configure(self, *, continue_first: bool = False, **more: str) -> None:
        """Write the configuration: the command, no more than the row names, and `more` of environment.

        What is stopped would go on by SIGCONT: a night measures what comes after that, `run_stages.py` the SIGCONT.
        """
        env = {
            "PYTHONPATH": str(HERE / "injections"), "GALLERY_INJECTIONS": str(self.injections), "OMP_NUM_THREADS": "1",
            "HF_HUB_OFFLINE": "1", "HF_HOME": str(self.house.folder / "hf"), "PYTHONUNBUFFERED": "1",
            "YOLO_OFFLINE": "1", "GALLERY_REST_S": str(self.rest_s), "GALLERY_STEPS": self.row.steps,
            **self.row.env, **more,
        }  # fmt: skip
        pairs = ", ".join(f"{name} = {json.dumps(value)}" for name, value in env.items())
        table = f"cwd = {json.dumps(str(self._src / self.row.cwd))}\nenv = {{ {pairs} }}\nsnapshot_every_s = 15\n"
        name = self.name
        table += f"[jobs.{name}.budget]\nbackoff_s = [0.0]\n"
        table += f"[jobs.{name}.rules.stopped_process]\ncontinue_first = {str(continue_first).lower()}\n"
        if self.row.checkpoints:
            table += f"[jobs.{name}.checkpoints]\npaths = {json.dumps(list(self.row.checkpoints))}\n"
        if self.row.resume:
            table += f"[jobs.{name}.resume]\ncommand = {json.dumps(self._fill(self.row.resume))}\n"
        if self.row.resume_to:
            table += f'to = "{self.row.resume_to}"\n'
        self.house.write(self.house.job_of(name, self._fill(self.row.command), table))

    # --- the night ------------------------------------------------------------------------------------------------

    def kinds(self) -> list[str]:
        """Return what this row can be hurt by."""
        hurts = ["kill", "stop"]
        hurts += ["rank"] if self.row.ranks > 1 else []
        return hurts if self.row.steps == "unseen" else [*hurts, "oom", "nan"]

    def play(self, kinds: list[str] | None = None) -> Night:
        """Start the training, watch it while it is well, and hurt it once in each way."""
        began = time.monotonic()  # noqa: TID251 - how long it took is told
        self.configure()
        self.house.start()
        try:
            self._watch_healthy()
            for kind in kinds or self.kinds():
                if not self._hurt(kind):
                    break
        except AssertionError as error:
            self.night.problem = str(error).split("\n", maxsplit=1)[0]
        self.night.seconds = round(time.monotonic() - began, 1)  # noqa: TID251 - the same
        return self.night

    def _job(self) -> dict[str, Any]:
        return self.house.job(self.name)

    def _steps(self, attempt: int) -> int:
        """Return how many steps an attempt has made: counted where that can be, told otherwise."""
        job = self._job()
        counted = len(self.truth.times(attempt))
        return counted or (int(job["attempt_steps"] or 0) if job["attempt"] == attempt else 0)

    def _watch_healthy(self, steps: int = 30, seconds: float = 20.0) -> None:
        """Wait until it has trained for a while; whatever is told meanwhile is a false alarm."""
        began: list[float] = []

        def well() -> bool:
            job = self._job()
            if self.house.incidents(self.name) or job["phase"] in ("failed", "finished", "backoff"):
                return True
            if not began and (self._steps(1) or self.row.steps == "unseen") and job["phase"] == "running":
                began.append(time.monotonic())  # noqa: TID251 - a test's deadline
            enough = self._steps(1) >= steps or self.row.steps == "unseen"
            return bool(began) and enough and time.monotonic() - began[0] >= seconds  # noqa: TID251 - the same

        self.house.until(well, 2 * LIMIT_S, f"{self.name} to train")
        job, found = self._job(), self.house.incidents(self.name)
        self.night.hooked = self._hook(job)
        self.night.false_alarms = [f"{match['rule']}: {match['message']}" for match in found]
        assert job["phase"] == "running", f"{job['phase']}: {job['reason'] or found or self.house.read_output()[-300:]}"
        self.night.healthy = "no" if found else "yes"

    def _hook(self, job: dict[str, Any]) -> str:
        """Return how its steps are known."""
        if not job["hooked"]:
            return "output"
        events = self._events(1)
        frameworks = {str(event.get("framework")) for event in events if event.get("framework")}
        steps = "steps" if job["attempt_steps"] else "no steps"
        return f"{', '.join(sorted(frameworks)) or ('optax' if self.row.steps == 'flax' else 'torch')}: {steps}"

    def _events(self, attempt: int) -> list[dict[str, Any]]:
        found = (self.house.state / "jobs" / self.name / str(attempt)).rglob("agent.jsonl")
        return [json.loads(line) for path in found for line in path.read_text().splitlines()]

    def _hurt(self, kind: str) -> bool:
        """Hurt it once; return whether it trains again."""
        wound = Wound(kind)
        self.night.wounds.append(wound)
        known = {incident["id"] for incident in self.house.incidents(self.name)}
        attempt = int(self._job()["attempt"])
        struck = time.time()  # noqa: TID251 - compared with the record's
        try:
            self._strike(kind)
            self.house.until(lambda: self._is_reported(wound, known, struck), LIMIT_S, f"{kind} to be told")
        except AssertionError as error:
            wound.problem = str(error).split("\n", maxsplit=1)[0]
            return self._clear(kind)
        first = self._new(known)
        assert first is not None
        wound.found_s = round(first["at"] - struck, 1)
        try:
            self.house.until(lambda: self._goes_on(known, attempt), LIMIT_S, f"{self.name} to train after {kind}")
        except AssertionError as error:
            wound.problem = str(error).split("\n", maxsplit=1)[0]
        self._learn(wound, known, attempt)
        return not wound.problem

    def _is_reported(self, wound: Wound, known: set[str], struck: float) -> bool:
        """Return whether there is an incident; note when a stopped process was told before."""
        if (
            wound.kind == "stop"
            and wound.warned_s is None
            and any("is stopped" in flag for flag in self._job()["flags"])
        ):
            wound.warned_s = round(time.time() - struck, 1)  # noqa: TID251 - compared with the same clock
        return self._new(known) is not None

    def _clear(self, kind: str) -> bool:
        """Take an injection back that nobody met, or that nobody told; return whether it trains on."""
        (self.injections / kind).unlink(missing_ok=True)
        if kind == "stop":
            for pid in self._workers():
                os.kill(pid, signal.SIGCONT)
        return str(self._job()["phase"]) == "running"

    def _new(self, known: set[str]) -> dict[str, Any] | None:
        """Return the first incident that was not known before."""
        return next((incident for incident in self.house.incidents(self.name) if incident["id"] not in known), None)

    def _goes_on(self, known: set[str], attempt: int) -> bool:
        job = self._job()
        if job["phase"] in ("failed", "finished"):
            raise AssertionError(f"{job['phase']}: {job['reason']}")
        if job["attempt"] <= attempt or job["phase"] != "running":
            return False
        closed = [
            incident
            for incident in self.house.incidents(self.name)
            if incident["id"] not in known and incident["resumed_at"]
        ]
        trains = self._steps(job["attempt"]) >= 6 or self.row.steps == "unseen"
        return bool(closed and trains)

    def _learn(self, wound: Wound, known: set[str], attempt: int) -> None:
        """Write down what was told of a wound, and what was true."""
        reported = [item for item in self.house.incidents(self.name) if item["id"] not in known]
        incident, now = reported[0], int(self._job()["attempt"])
        wound.reported = incident["rule"] + (f" ({incident['fault']})" if incident["fault"] else "")
        wound.message, wound.outcome = incident["message"], incident["outcome"]
        wound.lost_steps, wound.confirmed, wound.remedy = (
            incident["lost_steps"],
            incident["confirmed"],
            incident["remedy"],
        )
        self.night.false_alarms += [
            f"after {wound.kind}: {report['rule']}: {report['message']}" for report in reported[1:]
        ]
        point = incident["resumed_from"]
        at = 0 if point is None else self._true_step(point, attempt)
        last = self.truth.step(attempt)
        wound.lost_truly = None if at is None or last is None else last - at
        if point is not None:
            path = Path(point["source"] or point["path"])
            wound.resumed_from, wound.resumed_step = f"{path.parent.name}/{path.name}", point["step"]
        self.truth.begin(now, at if len(reported) == 1 and now == attempt + 1 else None)

    def _true_step(self, point: dict[str, Any], attempt: int) -> int | None:
        """Return the step at which a checkpoint was truly saved: a snapshot's name says it, a file's time tells it."""
        if named := re.search(r"snapshots/step-0*(\d+)", point["path"]):
            return int(named.group(1))
        next_began = self._launched_at(attempt + 1)
        file = Path(point["path"])
        # The next attempt may have written the training's own file since: then its content is another save's.
        is_as_it_was = file.is_file() and file.stat().st_mtime < next_began
        content = sha256(file.read_bytes()).hexdigest() if is_as_it_was else None
        if content in self._known_saves:
            return self._known_saves[content]  # a file that is put back has the time of that
        saves = self.house.client.get(f"/v1/jobs/{self.name}/checkpoints")["checkpoints"]
        times = [save["saved_at"] for save in saves if point["path"] in (save["path"], save["source"])]
        saved_at = max((at for at in times if at < next_began), default=None)
        if saved_at is None:
            return None
        launched = [self._launched_at(number) for number in range(1, attempt + 1)]
        step = self.truth.step(self.truth.attempt_at(saved_at, launched), saved_at)
        if content is not None:
            self._known_saves[content] = step
        return step

    def _launched_at(self, attempt: int) -> float:
        """Return when an attempt was launched; infinite where it was not."""
        try:
            return (self.house.state / "jobs" / self.name / str(attempt) / "launch.json").stat().st_mtime
        except FileNotFoundError:
            return float("inf")

    # --- wounds ---------------------------------------------------------------------------------------------------

    def _strike(self, kind: str) -> None:
        workers = self._workers()
        match kind:
            case "kill":
                os.kill(workers[0], signal.SIGKILL)
            case "stop":
                os.kill(workers[0], signal.SIGSTOP)
            case "rank":
                os.kill(workers[-1], signal.SIGKILL)
            case _:
                (self.injections / kind).touch()

    def _workers(self) -> list[int]:
        """Return the processes that make steps, rank 0 first; without ranks the one that claimed to, else the first.

        That of the command is gone where it has left its training in the background.
        """
        job = self._job()
        found: dict[int, int] = {}
        with suppress(psutil.NoSuchProcess):
            main = psutil.Process(int(job["pid"]))
            for process in (main, *main.children(recursive=True)):
                rank = _rank(process)
                if rank is not None:
                    found.setdefault(rank, process.pid)
        claimed = [event["pid"] for event in self._events(int(job["attempt"])) if event["event"] == "claimed"]
        return [found[rank] for rank in sorted(found)] or claimed[-1:] or [int(job["pid"])]


def _rank(process: psutil.Process) -> int | None:
    """Return the rank of a process that is one rank's first; a data loader's worker carries its parent's."""
    try:
        env = process.environ()
    except psutil.Error:
        return None
    value = env.get("RANK", env.get("LOCAL_RANK"))
    return int(value) if value is not None else None


def _copy(origin: Path, to: Path) -> None:
    if origin.is_dir():
        shutil.copytree(origin, to, dirs_exist_ok=True, ignore=shutil.ignore_patterns(".git"))
        return
    to.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy2(origin, to)
