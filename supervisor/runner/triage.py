"""Lays out the replays of a step that went wrong, reads what they said and keeps it; it leaves the attempt untouched.

Each is the attempt's own command, resumed from a proven state in a folder of its own, where ultralytics writes too.
What lies in that folder was written by a user's program: what is not sound there is no finding.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from supervisor.core import folder as names
from supervisor.core.triage import FINDING_FILES, Finding, LookedFor, Replay, conclude, needed, same_course
from supervisor.runner.attempt import agent_path, read_note
from supervisor.runner.shim import Recorder

SAID = "triage.json"
"""What the agent writes into a replay's folder before it ends the process."""
REPORT = "report.json"
WORDS = "report.txt"
SAID_LIMIT_BYTES = 1 << 20
TEXTS_KEPT = 256
TEXT_LIMIT = 4096
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
    looked_for: LookedFor = "loss"
    checkpoint: Path | None
    """None: from the beginning."""
    argv: Sequence[str] | None = None
    """The command that goes on from `checkpoint`; None: the attempt's, with the checkpoint in place of its own."""
    target: Path
    """Where the report goes, and the folders of replays made by hand."""
    losses: Mapping[int, float] = field(default_factory=dict)
    """What the training recorded before the bad step, by which a replay is known for the same training."""
    limit_s: float = 1800.0


def triage(case: Case, told: Callable[[str], None]) -> tuple[Finding, tuple[Replay, ...]]:
    """Replay by hand as often as it takes to say something, and write report.json and report.txt.

    `told` is called with the name of each replay before it begins. Raises OSError where the attempt's launch.json
    cannot be read or the target not be written, ValueError where the former is damaged.
    """
    launch = read_launch(case)
    case.target.mkdir(parents=True, exist_ok=True)
    done: tuple[Replay, ...] = ()
    while (name := needed(done)) is not None:
        told(name)
        done = (*done, _replay(case, launch, name))
    finding = conclude(done)
    keep(case, finding, done)
    return finding, done


def read_launch(case: Case) -> dict[str, Any]:
    """Return the launch.json of the attempt; raise OSError or ValueError where there is none that is sound."""
    launch = json.loads((case.attempt / names.LAUNCH).read_text(encoding="utf-8"))
    if not isinstance(launch, dict) or not {"argv", "cwd", "env"} <= launch.keys():
        raise ValueError(f"{case.attempt / names.LAUNCH}: not what the daemon writes")
    return launch


def _replay(case: Case, launch: Mapping[str, Any], name: str) -> Replay:
    folder = case.target / name
    folder.mkdir(parents=True, exist_ok=True)
    for old in (folder / SAID, folder / names.RECORDER, folder / names.AGENT):
        old.unlink(missing_ok=True)
    problem = Recorder(str(folder)).make()
    if problem is not None:
        return Replay(name=name, seen=None, problem=problem)
    note = {"version": 1, "settings": remedies_of(case, name)}
    (folder / names.REMEDIES).write_text(json.dumps(note) + "\n", encoding="utf-8")
    status = _run(launch_of(case, launch, folder, name), folder, case)
    return read(case, name, folder, status)


def launch_of(case: Case, launch: Mapping[str, Any], folder: Path, name: str) -> dict[str, Any]:
    """Return what a replay is launched with: the attempt's command and environment, and what the agent is asked."""
    asked = {
        "step": case.step,
        "report": str(folder / SAID),
        "other_batch": name == "other_batch",
        "looked_for": case.looked_for,
    }
    env = {
        **launch["env"],
        **(_NO_CARD if name == "cpu" else {}),
        "PYTHONPATH": _with_agent(launch["env"].get("PYTHONPATH", "")),
        names.ENV_FOLDER: str(folder),
        names.ENV_RESUME_FROM: str(case.checkpoint or ""),
        names.ENV_SNAPSHOTS: str(folder),
        names.ENV_SNAPSHOT_EVERY: "0",
        names.ENV_TRIAGE: json.dumps(asked),
    }
    return {**launch, "argv": _argv(case, launch), "env": env, "save_s": 0.0, "grace_s": 0.0}


def _with_agent(theirs: str) -> str:
    ours = str(agent_path())
    return theirs if ours in theirs.split(os.pathsep) else os.pathsep.join(filter(None, (ours, theirs)))


def _argv(case: Case, launch: Mapping[str, Any]) -> list[str]:
    """Return the command; where the attempt's named the checkpoint that it resumed from, with ours in its place."""
    if case.argv is not None:
        return list(case.argv)
    theirs = launch["env"].get(names.ENV_RESUME_FROM)
    if not theirs or case.checkpoint is None:
        return list(launch["argv"])
    return [word.replace(theirs, str(case.checkpoint)) for word in launch["argv"]]


def remedies_of(case: Case, name: str) -> dict[str, object]:
    """Return the settings for the agent: those that the attempt had, and what the replay differs by."""
    try:
        settings = json.loads((case.attempt / names.REMEDIES).read_text(encoding="utf-8"))["settings"]
    except (OSError, ValueError, KeyError, TypeError):
        settings = {}
    mine = {key: {"value": value, "remedies": ["triage"]} for key, value in _LATER[name].items()}
    return {**(settings if isinstance(settings, dict) else {}), **mine}


def _run(launch: Mapping[str, Any], folder: Path, case: Case) -> str:
    """Run one replay in a group of its own; return how it ended. Nothing of it is left."""
    with (folder / names.OUTPUT).open("wb") as output:
        try:
            process = subprocess.Popen(
                launch["argv"],
                cwd=launch["cwd"],
                env={**os.environ, **launch["env"]},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
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


# --- what they said -----------------------------------------------------------------------------------------------


def read(case: Case, name: str, folder: Path, ending: str) -> Replay:
    """Return a replay as its agent told of it; where it told nothing sound, with `ending` as what went wrong."""
    said = read_note(folder / SAID, SAID_LIMIT_BYTES)
    if not isinstance(seen := said.get("seen"), bool):
        return Replay(name=name, seen=None, problem=f"{ending}; see {names.OUTPUT} of replay {name}")
    batch, where = _object(said.get("batch")), _object(said.get("where"))
    module = f"{where.get('module') or 'the model'} ({where.get('kind')}, {where.get('dtype')})" if where else None
    step, device = said.get("step"), said.get("device")
    one = Replay(
        name=name,
        seen=seen,
        step=step if isinstance(step, int) else None,
        device=device[:TEXT_LIMIT] if isinstance(device, str) else None,
        half=said.get("half") is True,
        module=module[:TEXT_LIMIT] if module else None,
        not_finite=_texts(batch.get("not_finite")),
        out_of_range=_texts(batch.get("out_of_range")),
        files=_texts(batch.get("files")),
        bad_files=_texts(batch.get("bad_files")),
        same_course=same_course(_losses(said.get("losses")), case.losses),
    )
    if name == "other_batch" and said.get("other_batch") is not True:
        return replace(one, seen=None, problem="no other batch could be given")
    return one


def _object(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _texts(value: object) -> tuple[str, ...]:
    return tuple(str(one)[:TEXT_LIMIT] for one in value[:TEXTS_KEPT]) if isinstance(value, list) else ()


def _losses(value: object) -> dict[int, float]:
    pairs = [one for one in value if isinstance(one, list) and len(one) == 2] if isinstance(value, list) else []
    return {
        step: float(loss)
        for step, loss in pairs
        if isinstance(step, int) and isinstance(loss, int | float) and math.isfinite(loss)
    }


# --- the report ---------------------------------------------------------------------------------------------------


def keep(case: Case, finding: Finding, replays: tuple[Replay, ...]) -> None:
    """Write report.json and report.txt; raise OSError where that is refused."""
    report = {
        "version": 1,
        "step": case.step,
        "looked_for": case.looked_for,
        "checkpoint": str(case.checkpoint) if case.checkpoint else None,
        "finding": asdict(finding),
        "replays": [asdict(one) for one in replays],
    }
    case.target.mkdir(parents=True, exist_ok=True)
    (case.target / REPORT).write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    text = "\n".join(lines(finding, replays)) + "\n"
    (case.target / WORDS).write_text(text, encoding="utf-8", errors="backslashreplace")


def lines(finding: Finding, replays: tuple[Replay, ...]) -> list[str]:
    """Return the report in words."""
    text = [f"{finding.verdict.replace('_', ' ')}: {finding.words}"]
    text += [f"  look at {one}" for one in finding.files[:FINDING_FILES]]
    if len(finding.files) > FINDING_FILES:
        text.append(f"  and {len(finding.files) - FINDING_FILES} more, in {REPORT}")
    for one in replays:
        came = {True: "it came back", False: "it did not come back", None: one.problem or "nothing is known"}[one.seen]
        where = f" at step {one.step}" if one.seen else ""
        text.append(
            f"  {one.name} ({one.device or 'no device'}): {came}{where}" + (f", {one.module}" if one.module else "")
        )
    return text
