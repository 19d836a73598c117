"""The readers of what ranks, probes, replays, tunes and other nodes leave, each fed through the real file.

`fuzz.py` runs them beside those of `fuzz_files.py`, with the same bounds.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Sequence
from pathlib import Path

from fuzz_files import LINES, NOW, FileFeed, fits, ring

from supervisor.cluster import rank_evidence
from supervisor.cluster.leader_record import ALERTS, INCIDENTS, STATE
from supervisor.cluster.leader_state import read_alerts, read_begin, read_known
from supervisor.core import attempt_files as fo
from supervisor.core.fleet import messages as ms
from supervisor.core.fleet.epoch import Epoch
from supervisor.core.fleet.evidence import RankEvidence
from supervisor.core.fleet.link import Greeting, Link, LinkError, Role, encode_greeting
from supervisor.core.fleet.resume import Offer
from supervisor.core.foreign_values import STEP_MAX
from supervisor.core.memory.points import NEEDED
from supervisor.core.triage.finding import conclude
from supervisor.runner import memory_probe, tuned
from supervisor.runner import triage as tr
from supervisor.runner.evidence_folder import EvidenceFolder
from supervisor.runner.shared_generations import list_generations

ARGV = ("python", "train.py")
EPOCH = Epoch("run", 1, 2)
STACKS_PID = 77
SENT: tuple[ms.Message, ...] = (
    ms.Joined(running=EPOCH, ordered=EPOCH, host="10.0.0.1", unix_s=1.5),
    ms.NodeBeat(sent_s=1.0, steps=7, ranks=(0, 1)),
    ms.Fault(epoch=EPOCH, kind="rank_exit", reason="rank 1 killed by SIGKILL", rank=1),
    ms.EvidenceTaken(
        epoch=EPOCH, took_s=0.5, folder="/e", ranks=(RankEvidence(node="n1", rank=3, killed_by="SIGSEGV", stack="a"),)
    ),
    ms.ResumeOffers(number=3, offers=(Offer(name="step-7", digest="ab", epoch=(1, 2), step=7),), problem=None),
    ms.Launch(epoch=EPOCH, node_rank=1, nodes=2, host="10.0.0.1", port=29400),
    ms.FindResume(number=3, share=1, shares=2, rejected=("step-9",), passed_over=()),
    ms.Stop(epoch=EPOCH, reason="rank 1 killed"),
)


def report_feeds(folder: Path) -> dict[str, FileFeed]:
    """Return every reader by name; they work below `folder`."""
    return {**_of_ranks(folder / "ranks"), **_of_trials(folder / "trials"), **_of_nodes(folder / "nodes")}


def _of_ranks(attempt: Path) -> dict[str, FileFeed]:
    (attempt / fo.RUN).mkdir(parents=True)
    stacks = attempt / f"stacks-{STACKS_PID}.txt"
    return {
        "a rank's recorder": FileFeed(attempt / fo.RECORDER, [ring(5), ring(40)], lambda: _read_numbers(attempt)),
        "a rank's reports": FileFeed(attempt / fo.AGENT, _reports(), lambda: _read_reports(attempt)),
        "a launcher's output": FileFeed(attempt / fo.OUTPUT, [_LAUNCHER], lambda: _read_reports(attempt)),
        "a dump of stacks": FileFeed(stacks, [_STACKS], lambda: _read_stacks(attempt)),
    }


def _of_trials(job: Path) -> dict[str, FileFeed]:
    attempt = job / "1"
    (attempt / fo.RUN).mkdir(parents=True)
    case = tr.Case(attempt=attempt, step=9, checkpoint=None, target=EvidenceFolder(attempt, fo.EVIDENCE))
    replay = {
        "seen": True, "step": 9, "device": "cpu", "half": False, "losses": {"7": 0.5, "8": 0.4}, "other_batch": True,
        "where": {"module": "net.0", "kind": "Linear", "dtype": "float32"},
        "batch": {"not_finite": ["x"], "files": ["a"]},
    }  # fmt: skip
    point = dict.fromkeys(NEEDED, 1 << 20)
    probe = {**point, "device": "cuda", "batch": 16, "configured": 16, "timing": {"step_ms": 3.5, "draws": 4}}
    tuned.keep(job, ARGV, {"adopted": [{"knob": "workers", "value": 4}]}, {"torch": "2.1"}, tries=1)
    kept = (job / tuned.TUNED).read_bytes()
    remedies = {"version": 1, "settings": {"batch": {"value": 8, "remedies": ["oom"]}}}
    launch = {"argv": list(ARGV), "cwd": "/", "env": {fo.ENV_CONV2D: "auto", "HOME": "/root"}}
    return {
        "triage.json file": FileFeed(attempt / tr.REPLAY_REPORT, [_json(replay)], lambda: _read_replay(case)),
        "memory.json file": FileFeed(attempt / memory_probe.REPORT, [_json(probe)], lambda: _read_probe(attempt)),
        "tuned.json file": FileFeed(job / tuned.TUNED, [kept], lambda: _read_tuned(job, attempt)),
        "remedies.json file": FileFeed(attempt / fo.REMEDIES, [_json(remedies)], lambda: _read_remedies(case)),
        "launch.json file": FileFeed(attempt / fo.LAUNCH, [_json(launch)], lambda: _read_launch(attempt)),
    }


def _of_nodes(folder: Path) -> dict[str, FileFeed]:
    shards = folder / "step-000000000007" / fo.SHARDS
    shards.parent.mkdir(parents=True)
    manifest = _json({"step": 7, "epoch": "1.2", "files": ["a.pt"]})
    incident = {"id": str(EPOCH), "kind": "hang", "reason": "no step", "node": "n1", "rank": 3, "closed": False}
    read_state = _reads_state(folder)
    sent, stream = folder / "message", folder / "stream"
    return {
        "a manifest of shards": FileFeed(shards, [manifest], lambda: _read_shards(folder)),
        "a leader's state": FileFeed(folder / STATE, [_json(_state())], read_state),
        "a leader's incidents": FileFeed(folder / INCIDENTS, [_json(incident) * 3], read_state),
        "a leader's alerts": FileFeed(folder / ALERTS, [_json({"alerts": [{"event": "x"}] * 2})], read_state),
        "another node's message": FileFeed(sent, [ms.encode(item) for item in SENT], lambda: _read_message(sent)),
        "a stranger's bytes": FileFeed(stream, _streams(), lambda: _read_stream(stream)),
    }


# --- what is read -------------------------------------------------------------------------------------------------


def _read_numbers(attempt: Path) -> None:
    for number in (
        rank_evidence.read_sequence(attempt, 0),
        rank_evidence.read_steps(attempt, 0),
        rank_evidence.read_training_step(attempt, 0),
    ):
        fits(number is None or 0 <= number < 2**63, "number")


def _read_reports(attempt: Path) -> None:
    for pid, (kind, message) in rank_evidence.read_exceptions(attempt).items():
        fits(0 <= pid < 2**63 and len(kind) <= 4096 and len(message) <= 4096, "exception")
    for pid, code in rank_evidence.read_launcher_report(attempt).items():
        fits(0 <= pid < 10**10 and abs(code) < 1000, "status")


def _read_stacks(attempt: Path) -> None:
    fits(all(":" in frame for frame in rank_evidence.read_frames(attempt, STACKS_PID)), "frame")


def _read_replay(case: tr.Case) -> None:
    replay = tr.read(case, "other_batch", case.attempt, "status 1")
    fits(replay.step is None or 0 <= replay.step <= STEP_MAX, "step")
    fits(len(replay.module or "") + len(replay.device or "") < 10_000, "text")
    conclude((replay,))


def _read_probe(attempt: Path) -> None:
    result = memory_probe.read_result(attempt, "reported", discarded=True)
    fits(result.point is not None or bool(result.problem), "problem")
    fits(all(0.0 <= number < float("inf") for number in result.timing.values()), "timing")


def _read_tuned(job: Path, attempt: Path) -> None:
    tuned.apply_kept(attempt, ARGV, ("batch",))


def _read_remedies(case: tr.Case) -> None:
    tr.remedies_of(case, "cpu")
    tuned.remedied_settings(case.attempt)


def _read_launch(attempt: Path) -> None:
    fits(all(isinstance(word, str) for word in tuned.launched_command(attempt)), "argv")
    tuned.remedied_settings(attempt)


def _read_shards(folder: Path) -> None:
    for offer in list_generations(folder, 8):
        fits((offer.step or 0) <= STEP_MAX, "step")
        # What is found is sent to the leader.
        answer = ms.ResumeOffers(number=1, offers=(offer,), problem=None)
        fits(ms.decode(ms.encode(answer)) == answer, "offer")


def _reads_state(folder: Path) -> Callable[[], None]:
    def read() -> None:
        try:
            read_known(folder, "run", NOW, "boot")
        except ValueError as error:
            fits(len(str(error)) < 1000, "error")
        read_begin(folder)
        fits(all(isinstance(alert, dict) for alert in read_alerts(folder)), "alert")

    return read


def _read_message(path: Path) -> None:
    try:
        message = ms.decode(path.read_bytes())
    except ms.MessageError as error:
        fits(len(str(error)) < 5000, "error")
        return
    fits(ms.decode(ms.encode(message)) == message, "message")


def _read_stream(path: Path) -> None:
    content = path.read_bytes()
    for role in Role:
        link = Link(role, Greeting(name="n0", version="1", job="run"), b"s" * 16, b"n" * 32, "10.0.0.9")
        try:
            for start in range(0, len(content), 700):
                fits(not list(link.feed(content[start : start + 700])), "a message of a stranger")
        except LinkError as error:
            fits(len(str(error)) < 5000, "error")
        fits(link.peer is None, "a stranger proved himself")


# --- contents to begin with ---------------------------------------------------------------------------------------


def _json(fields: object) -> bytes:
    return json.dumps(fields).encode() + b"\n"


def _reports() -> Sequence[bytes]:
    reaped = {"event": "reaped", "pid": 70, "codes": {"71": -9, "72": 1}}
    raised = {"event": "exception", "pid": 71, "type": "ValueError", "message": "x" * 300}
    return [_json(reaped) + _json(raised), b"".join(map(_json, LINES)) + _json(raised)]


_LAUNCHER = b"E1 api.py:1] failed (exitcode: -9) local_rank: 1 (pid: 4711) of binary: /usr/bin/python\n" * 3
_STACKS = (
    b'Thread 0x00007f01 (most recent call first):\n  File "/a/queue.py", line 3 in get\n\n'
    b'Current thread 0x00007f02 (most recent call first):\n  File "/t/c10d.py", line 2926 in all_reduce\n'
    b'  File "/t/train.py", line 30 in <module>\n'
)


def _state() -> dict[str, object]:
    return {
        "epoch": str(EPOCH), "stage": "running", "boot": "b", "at_s": 9000.0, "at_unix_s": 1.7e9, "incidents": 2,
        "nodes": ["n1", "n2"], "excluded": ["n3"], "named_at_s": {"n3": [8000.0]}, "same_restarts": 1,
        "restarted_at_s": [8500.0], "steps": 70, "resumed": "step-000000000007", "fruitless": {"step-1": 1},
        "began_unix_s": 1.69e9,
    }  # fmt: skip


def _streams() -> Sequence[bytes]:
    frames = [encode_greeting(role, Greeting(name="n1", version="1", job="run"), b"m" * 32) for role in Role]
    greeted = [struct.pack(">I", len(frame)) + frame for frame in frames]
    return [*greeted, *(item + struct.pack(">I", 32) + bytes(32) for item in greeted)]
