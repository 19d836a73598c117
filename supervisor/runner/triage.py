"""Runs the replays of a step that went wrong and keeps what they said; it touches nothing of the attempt itself.

Each is the attempt's own command, resumed from a proven state in a folder of its own, where ultralytics writes too.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from supervisor.core import folder as names
from supervisor.core.triage import Finding, Replay, conclude, needed
from supervisor.runner.attempt import agent_path
from supervisor.runner.shim import Recorder

REPORT = "report.json"
WORDS = "report.txt"
_LATER: dict[str, dict[str, object]] = {
    "device": {},
    "other_batch": {},
    "float32": {"amp": False},
    "cpu": {"device": "cpu", "amp": False},
}
"""What the agent is to set for each replay, beyond what the attempt had."""
_NO_CARD = {"CUDA_VISIBLE_DEVICES": "", "HIP_VISIBLE_DEVICES": "", "ROCR_VISIBLE_DEVICES": ""}


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """What is replayed, from where, and for how long at most."""

    attempt: Path
    """Folder of the attempt that met the trouble."""
    step: int
    checkpoint: Path | None
    """None: from the beginning."""
    target: Path
    """Where the report and the replays' own folders go."""
    limit_s: float = 1800.0


def triage(case: Case, told: Callable[[str], None]) -> tuple[Finding, tuple[Replay, ...]]:
    """Replay as often as it takes to say something, and write report.json and report.txt.

    `told` is called with the name of each replay before it begins. Raises OSError where the attempt's launch.json
    cannot be read or the target not be written, ValueError where the former is damaged.
    """
    launch = json.loads((case.attempt / names.LAUNCH).read_text(encoding="utf-8"))
    case.target.mkdir(parents=True, exist_ok=True)
    done: tuple[Replay, ...] = ()
    while (name := needed(done)) is not None:
        told(name)
        done = (*done, _replay(case, launch, name))
    finding = conclude(done)
    _keep(case, finding, done)
    return finding, done


def _replay(case: Case, launch: Mapping[str, Any], name: str) -> Replay:
    folder = case.target / name
    folder.mkdir(parents=True, exist_ok=True)
    report = folder / "triage.json"
    for old in (report, folder / names.RECORDER, folder / names.AGENT):
        old.unlink(missing_ok=True)
    problem = Recorder(str(folder)).make()
    if problem is not None:
        return Replay(name=name, seen=None, problem=problem)
    _write_remedies(case, folder, name)
    status = _run(_argv(case, launch), launch["cwd"], _environment(case, launch, folder, report, name), folder, case)
    try:
        return _read(name, json.loads(report.read_text(encoding="utf-8")))
    except (OSError, ValueError):
        return Replay(name=name, seen=None, problem=f"{status}; see {folder / names.OUTPUT}")


def _argv(case: Case, launch: Mapping[str, Any]) -> list[str]:
    """Return the attempt's command; where it named the checkpoint that it resumed from, with ours in its place."""
    theirs = launch["env"].get(names.ENV_RESUME_FROM)
    if not theirs or case.checkpoint is None:
        return list(launch["argv"])
    return [word.replace(theirs, str(case.checkpoint)) for word in launch["argv"]]


def _environment(case: Case, launch: Mapping[str, Any], folder: Path, report: Path, name: str) -> dict[str, str]:
    asked = {"step": case.step, "report": str(report), "other_batch": name == "other_batch"}
    return {
        **os.environ,
        **launch["env"],
        **(_NO_CARD if name == "cpu" else {}),
        "PYTHONPATH": os.pathsep.join(filter(None, (str(agent_path()), launch["env"].get("PYTHONPATH", "")))),
        names.ENV_FOLDER: str(folder),
        names.ENV_RESUME_FROM: str(case.checkpoint or ""),
        names.ENV_SNAPSHOTS: str(folder),
        names.ENV_SNAPSHOT_EVERY: "0",
        names.ENV_TRIAGE: json.dumps(asked),
    }


def _write_remedies(case: Case, folder: Path, name: str) -> None:
    """Give the replay the remedies that the attempt had, and what it differs by."""
    try:
        settings = json.loads((case.attempt / names.REMEDIES).read_text(encoding="utf-8"))["settings"]
    except (OSError, ValueError, KeyError):
        settings = {}
    mine = {key: {"value": value, "remedies": ["triage"]} for key, value in _LATER[name].items()}
    note = {"version": 1, "settings": {**settings, **mine}}
    (folder / names.REMEDIES).write_text(json.dumps(note) + "\n", encoding="utf-8")


def _run(argv: list[str], cwd: str, env: dict[str, str], folder: Path, case: Case) -> str:
    """Run one replay in a group of its own; return how it ended. Nothing of it is left."""
    with (folder / names.OUTPUT).open("wb") as output:
        try:
            process = subprocess.Popen(
                argv, cwd=cwd, env=env, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True
            )
        except OSError as error:
            return f"{error.filename}: {error.strerror}"
        try:
            return f"it ended with status {process.wait(case.limit_s)} before the step"
        except subprocess.TimeoutExpired:
            return f"it did not get to the step within {case.limit_s:.0f} s"
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _read(name: str, said: Mapping[str, Any]) -> Replay:
    """Return a replay as its agent told of it; raises ValueError for what no agent writes."""
    batch, where = said.get("batch") or {}, said.get("where") or {}
    if not isinstance(said.get("seen"), bool):
        raise ValueError("a replay that does not say what it saw")
    module = f"{where.get('module') or 'the model'} ({where.get('kind')}, {where.get('dtype')})" if where else None
    one = Replay(
        name=name,
        seen=said["seen"],
        step=said.get("step"),
        device=said.get("device"),
        half=bool(said.get("half")),
        module=module,
        not_finite=tuple(map(str, batch.get("not_finite", ()))),
        out_of_range=tuple(map(str, batch.get("out_of_range", ()))),
        files=tuple(map(str, batch.get("files", ()))),
        bad_files=tuple(map(str, batch.get("bad_files", ()))),
    )
    if name == "other_batch" and not said.get("other_batch"):
        return replace(one, seen=None, problem="no other batch could be given")
    return one


def _keep(case: Case, finding: Finding, replays: tuple[Replay, ...]) -> None:
    report = {
        "version": 1,
        "step": case.step,
        "checkpoint": str(case.checkpoint) if case.checkpoint else None,
        "finding": asdict(finding),
        "replays": [asdict(one) for one in replays],
    }
    (case.target / REPORT).write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    (case.target / WORDS).write_text("\n".join(lines(finding, replays)) + "\n", encoding="utf-8")


def lines(finding: Finding, replays: tuple[Replay, ...]) -> list[str]:
    """Return the report in words."""
    text = [f"{finding.verdict.replace('_', ' ')}: {finding.words}", *(f"  look at {one}" for one in finding.files)]
    for one in replays:
        came = {True: "it came back", False: "it did not come back", None: one.problem or "nothing is known"}[one.seen]
        where = f" at step {one.step}" if one.seen else ""
        text.append(
            f"  {one.name} ({one.device or 'no device'}): {came}{where}" + (f", {one.module}" if one.module else "")
        )
    return text
