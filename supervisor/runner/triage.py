"""Runs the replays of a failed step and writes the report of their results; the attempt's own files are not changed.

Each replay is the attempt's command, resumed from a proven checkpoint in its own folder, into which ultralytics also
writes. Files in that folder are written by a user's program: invalid content gives no finding.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from supervisor import untrusted_files
from supervisor.children.start import start
from supervisor.core import attempt_files as names
from supervisor.core.foreign_values import STEP_MAX, as_dict, as_float, as_int, as_list, as_message
from supervisor.core.triage.finding import FINDING_FILES, Finding, LookedFor, Replay, conclude, needed, same_course
from supervisor.runner.attempt_folder import LAUNCH_LIMIT_BYTES, make_attempt_folder, read_note
from supervisor.runner.code_copy import INSTALLED, Code
from supervisor.runner.evidence_folder import EvidenceFolder
from supervisor.runner.shim_files import VERSION, Recorder

REPLAY_REPORT = f"{names.RUN}/triage.json"
"""The agent's report of a replay, written before it ends the process."""
REPORT = "report.json"
REPORT_TEXT = "report.txt"
RESULT_LIMIT_BYTES = 1 << 20
END_LIMIT_S = 5.0
"""How long a replay may take to end after SIGKILL."""
TEXTS_KEPT = 256
LOSSES_KEPT = 4096
"""More than an agent records."""
TEXT_LIMIT = 4096
_LATER: dict[str, dict[str, object]] = {
    "device": {},
    "other_batch": {},
    "float32": {"amp": False},
    "cpu": {"device": "cpu", "amp": False},
}
"""Settings of each replay's agent in addition to the attempt's."""
_NO_GPU = {"CUDA_VISIBLE_DEVICES": "", "HIP_VISIBLE_DEVICES": "", "ROCR_VISIBLE_DEVICES": ""}


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """What is replayed, from which checkpoint, and for how long at most."""

    attempt: Path
    """Folder of the attempt that failed."""
    step: int
    looked_for: LookedFor = "loss"
    checkpoint: Path | None
    """None: from the start of the training."""
    checkpoint_step: int | None = None
    argv: Sequence[str] | None = None
    """The command that resumes from `checkpoint`; None: the attempt's, with its checkpoint replaced by this one."""
    target: EvidenceFolder
    """Folder for the report and for manual replays."""
    losses: Mapping[int, float] = field(default_factory=dict)
    """The training's losses before the bad step, to check that a replay repeats the same training."""
    limit_s: float = 1800.0


def triage(case: Case, announce: Callable[[str], None], code: Code = INSTALLED) -> tuple[Finding, tuple[Replay, ...]]:
    """Run replays until they give a finding, and write report.json and report.txt.

    `announce` is called with the name of each replay before it begins; `code` contains their agent. Raises OSError if
    the attempt's launch.json cannot be read or the target cannot be written, ValueError if launch.json is invalid.
    """
    launch = read_launch(case)
    case.target.make()
    done: tuple[Replay, ...] = ()
    while (name := needed(done)) is not None:
        announce(name)
        done = (*done, _run_replay(case, launch, name, code))
    finding = conclude(done)
    keep(case, finding, done)
    return finding, done


def read_launch(case: Case) -> dict[str, Any]:
    """Return the launch.json of the attempt. Raises OSError if it cannot be read, ValueError if it is invalid."""
    launch = json.loads(untrusted_files.read_bytes(case.attempt, names.LAUNCH, LAUNCH_LIMIT_BYTES))
    if not isinstance(launch, dict) or not {"argv", "cwd", "env"} <= launch.keys():
        raise ValueError(f"{case.attempt / names.LAUNCH}: not a valid launch.json")
    version = as_int(launch.get("version"))
    if version is not None and version > VERSION:
        text = f"has version {version}, and this program reads up to {VERSION}: install the version that wrote it"
        raise ValueError(f"{case.attempt / names.LAUNCH} {text}")
    return launch


def _run_replay(case: Case, launch: Mapping[str, Any], name: str, code: Code) -> Replay:
    folder = case.target.path / name
    make_attempt_folder(folder, None)
    for old in (REPLAY_REPORT, names.RECORDER, names.AGENT, names.OUTPUT):
        untrusted_files.remove(folder, old)
    problem = Recorder(str(folder)).make()
    if problem is not None:
        return Replay(name=name, seen=None, problem=problem)
    note = {"version": 1, "settings": remedies_of(case, name)}
    untrusted_files.write_bytes(folder, names.REMEDIES, json.dumps(note).encode() + b"\n")
    status = _run_process(launch_of(case, launch, folder, name, code), folder, case)
    return read(case, name, folder, status)


def launch_of(case: Case, launch: Mapping[str, Any], folder: Path, name: str, code: Code) -> dict[str, Any]:
    """Return how a replay is launched: the attempt's command and environment, and the request to the agent."""
    request = {
        "step": case.step,
        "report": str(folder / REPLAY_REPORT),
        "other_batch": name == "other_batch",
        "looked_for": case.looked_for,
    }
    env = {
        **launch["env"],
        **(_NO_GPU if name == "cpu" else {}),
        "PYTHONPATH": _build_pythonpath(launch, code),
        names.ENV_FOLDER: str(folder / names.RUN),
        names.ENV_RESUME_FROM: str(case.checkpoint or ""),
        names.ENV_RESUME_STEPS: _resume_steps(case),
        names.ENV_SNAPSHOTS: str(folder / names.RUN),
        names.ENV_SNAPSHOT_EVERY: "0",
        names.ENV_REPLICAS: "",
        names.ENV_TRIAGE: json.dumps(request),
    }
    return {**launch, "argv": _build_argv(case, launch), "env": env, "save_s": 0.0, "grace_s": 0.0}


def _resume_steps(case: Case) -> str:
    """Return the step of the checkpoint for a replay's agent, so that it counts steps as the attempt did."""
    if case.checkpoint is None:
        return ""
    return json.dumps({"step": case.checkpoint_step, "asked": True, "files": []})


def _build_pythonpath(launch: Mapping[str, Any], code: Code) -> str:
    """Return PYTHONPATH with this version's agent in place of the attempt's, which may have been removed."""
    attempts = str(Code(Path(str(launch.get("code", INSTALLED.root)))).agent)
    theirs = launch["env"].get("PYTHONPATH", "").split(os.pathsep)
    return os.pathsep.join([str(code.agent), *(path for path in theirs if path and path != attempts)])


def _build_argv(case: Case, launch: Mapping[str, Any]) -> list[str]:
    """Return the attempt's command, with the checkpoint that it names replaced by that of the case."""
    if case.argv is not None:
        return list(case.argv)
    theirs = launch["env"].get(names.ENV_RESUME_FROM)
    if not theirs or case.checkpoint is None:
        return list(launch["argv"])
    return [argument.replace(theirs, str(case.checkpoint)) for argument in launch["argv"]]


def remedies_of(case: Case, name: str) -> dict[str, object]:
    """Return the settings for the agent: those of the attempt and those of the replay."""
    try:
        note = untrusted_files.read_bytes(case.attempt, names.REMEDIES, RESULT_LIMIT_BYTES)
        settings = json.loads(note)["settings"]
    except (OSError, ValueError, KeyError, TypeError):
        settings = {}
    mine = {key: {"value": value, "remedies": ["triage"]} for key, value in _LATER[name].items()}
    return {**(settings if isinstance(settings, dict) else {}), **mine}


def _run_process(launch: Mapping[str, Any], folder: Path, case: Case) -> str:
    """Run one replay in its own process group and kill what is left of it; return how it ended."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
    with os.fdopen(untrusted_files.open_file(folder, names.OUTPUT, flags, only_name=True), "ab") as output:
        try:
            process = start(
                launch["argv"],
                cwd=launch["cwd"],
                env={**os.environ, **launch["env"]},
                stdout=output,
                stderr=output,
                new_session=True,
            )
        except OSError as error:
            return f"{error.filename}: {error.strerror}"
        try:
            status = process.wait(case.limit_s)
            if status is None:
                return f"the replay did not reach the step within {case.limit_s:.0f} s"
            return f"the replay ended with status {status} before the step"
        finally:
            process.kill_group()
            process.end(END_LIMIT_S)


# --- results ------------------------------------------------------------------------------------------------------


def read(case: Case, name: str, folder: Path, ending: str) -> Replay:
    """Return a replay's result as its agent reported it; without a valid report, `ending` is its problem."""
    report = read_note(folder, REPLAY_REPORT, RESULT_LIMIT_BYTES)
    if not isinstance(seen := report.get("seen"), bool):
        return Replay(name=name, seen=None, problem=f"{ending}; see output.log of replay {name}")
    batch, where = as_dict(report.get("batch")), as_dict(report.get("where"))
    named, kind, dtype = (as_message(where.get(name), TEXT_LIMIT) for name in ("module", "kind", "dtype"))
    module = f"{named or 'the model'} ({kind}, {dtype})" if where else None
    replay = Replay(
        name=name,
        seen=seen,
        step=as_int(report.get("step"), maximum=STEP_MAX),
        device=as_message(report.get("device"), TEXT_LIMIT),
        half=report.get("half") is True,
        module=module[:TEXT_LIMIT] if module else None,
        not_finite=_read_texts(batch.get("not_finite")),
        out_of_range=_read_texts(batch.get("out_of_range")),
        files=_read_texts(batch.get("files")),
        bad_files=_read_texts(batch.get("bad_files")),
        same_course=same_course(_read_losses(report.get("losses")), case.losses),
    )
    if name == "other_batch" and report.get("other_batch") is not True:
        return replace(replay, seen=None, problem="no other batch was available")
    return replay


def _read_texts(value: object) -> tuple[str, ...]:
    texts = (as_message(item, TEXT_LIMIT) for item in as_list(value, TEXTS_KEPT))
    return tuple(text for text in texts if text is not None)


def _read_losses(value: object) -> dict[int, float]:
    pairs = [pair for pair in as_list(value, LOSSES_KEPT) if isinstance(pair, list) and len(pair) == 2]
    known = ((as_int(step, maximum=STEP_MAX), as_float(loss)) for step, loss in pairs)
    return {step: loss for step, loss in known if step is not None and loss is not None}


# --- the report ---------------------------------------------------------------------------------------------------


def keep(case: Case, finding: Finding, replays: tuple[Replay, ...]) -> None:
    """Write report.json and report.txt. Raises OSError if they cannot be written."""
    report = {
        "version": 1,
        "step": case.step,
        "looked_for": case.looked_for,
        "checkpoint": str(case.checkpoint) if case.checkpoint else None,
        "finding": asdict(finding),
        "replays": [asdict(replay) for replay in replays],
    }
    case.target.make()
    case.target.write(REPORT, json.dumps(report, indent=2) + "\n")
    case.target.write(REPORT_TEXT, "\n".join(lines(finding, replays)) + "\n")


def lines(finding: Finding, replays: tuple[Replay, ...]) -> list[str]:
    """Return the report as lines of text."""
    text = [f"{finding.verdict.replace('_', ' ')}: {finding.words}"]
    text += [f"  look at {file}" for file in finding.files[:FINDING_FILES]]
    if len(finding.files) > FINDING_FILES:
        text.append(f"  and {len(finding.files) - FINDING_FILES} more, in {REPORT}")
    for replay in replays:
        came = {True: "reproduced", False: "not reproduced", None: replay.problem or "no result"}[replay.seen]
        where = f" at step {replay.step}" if replay.seen else ""
        text.append(
            f"  {replay.name} ({replay.device or 'no device'}): {came}{where}"
            + (f", {replay.module}" if replay.module else "")
        )
    return text
