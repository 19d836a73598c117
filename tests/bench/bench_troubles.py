"""Figures of a training in trouble: crashed, hung, on a card that the kernel complains of."""

from __future__ import annotations

import json
import os
import time
from functools import partial
from itertools import pairwise
from pathlib import Path

from bench_house import JOB, job_of, proven_step, supervised
from bench_peers import HEARTBEAT_LIMIT_S, Peers, nvrx, supervisord_crashes, torchrun, torchrun_torch
from clocked import TRAINING, Output, crash, until
from figure_table import Figure, Peer
from house import House

CRASHES = 5
STALLS = 6
STALL_LIMIT_S = HEARTBEAT_LIMIT_S
FAULTS = 4
START_LIMIT_S = 30.0
KMSG = Path("/dev/kmsg")
FAULT = "<3>amdgpu 0000:0a:00.0: amdgpu: ring gfx_0.0.0 timeout, signaled seq=1, emitted seq=3\n"


def _proven_since(house: House, step: int) -> bool:
    return proven_step(house) > step


def crashes(peers: Peers) -> tuple[Figure, ...]:
    """SIGKILL to the training, each time after progress and with a proven checkpoint to resume from."""
    folder, output = _work(peers, "crash")
    training = [peers.train_python, TRAINING, output.path, "--beat", "agent", "--save", folder / "state.safetensors"]
    found = []
    with supervised(folder, job_of(training)) as house:
        for _ in range(CRASHES):
            step = output.steps_on(30, START_LIMIT_S).number
            until(partial(_proven_since, house, step - 30), START_LIMIT_S, "a proven checkpoint")
            found.append(crash(output, START_LIMIT_S))
    process, first = [match[0] for match in found], [match[1] for match in found]
    to_process = (
        peers.asked("torchrun --max-restarts", torchrun, lambda found: found.to_process_s),
        peers.asked("supervisord, autorestart", supervisord_crashes, lambda found: found[0]),
    )
    to_step = (
        peers.asked("torchrun --max-restarts", torchrun, lambda found: found.to_step_s),
        peers.asked("supervisord, autorestart", supervisord_crashes, lambda found: found[1]),
    )
    return (
        Figure(name="crash to new process", unit="s", values=process, limit=0.3, peers=to_process),
        Figure(name="crash to first step", unit="s", values=first, peers=to_step),
    )


def standbys(peers: Peers) -> tuple[Figure, ...]:
    """SIGKILL to a training that imports torch, with an interpreter standing by and without; where the time goes."""
    warm, parts = _restarts(peers, "standby", "standby = true\n", ready=True)
    cold, _ = _restarts(peers, "no-standby", "", ready=False)
    theirs = peers.asked("torchrun, torch imported anew", torchrun_torch, lambda found: found.to_step_s)
    own = Peer(name="ours, from cold", values=cold)
    name = "crash to first step, torch imported, warm standby"
    return (Figure(name=name, unit="s", values=warm, limit_ratio=0.5, peers=(theirs, own)), *parts)


def _restarts(peers: Peers, name: str, table: str, *, ready: bool) -> tuple[list[float], list[Figure]]:
    """Return the seconds of each crash until the first step, and the parts that they consist of."""
    folder, output = _work(peers, name)
    own = ["--beat", "agent", "--save", folder / "state.safetensors", "--import", "torch"]
    found, parts = [], []
    with supervised(folder, job_of([peers.train_python, TRAINING, output.path, *own], table)) as house:
        for number in range(1, CRASHES + 1):
            step = output.steps_on(30, START_LIMIT_S).number
            until(partial(_proven_since, house, step - 30), START_LIMIT_S, "a proven checkpoint")
            if ready:
                until(lambda: house.job(JOB)["standby"] == "ready", START_LIMIT_S, "an interpreter to stand by")
            killed_unix_s = time.time_ns() / 1e9
            found.append(crash(output, START_LIMIT_S)[1])
            parts.append(_parts(house, output, number, killed_unix_s))
    names = [
        "  of it until the exit is written down",
        "  until the retry is decided",
        "  until the checkpoint is chosen, the launch decided",
        "  until the shim begins",
        "  until the program begins",
        "  until its first step",
    ]
    columns = zip(*parts, strict=True)
    return found, [Figure(name=name, unit="s", values=item) for name, item in zip(names, columns, strict=True)]


def _parts(house: House, output: Output, number: int, killed_unix_s: float) -> list[float]:
    """Return the seconds between the stations from a crash of an attempt to the first step of the next."""
    attempts = house.state / "jobs" / JOB
    until((attempts / str(number + 1) / "run/shim.json").exists, START_LIMIT_S, "the next shim")
    exited = json.loads((attempts / str(number) / "run/exit.json").read_text())
    started = json.loads((attempts / str(number + 1) / "run/shim.json").read_text())

    def decided(kind: str, attempt: int) -> list[tuple[float]]:
        sql = "SELECT at_unix_s FROM decisions WHERE job = ? AND kind = ? AND attempt = ?"
        return house.query(sql, JOB, kind, attempt)

    until(lambda: decided("launch", number + 1), START_LIMIT_S, "the decision in the record")
    stations = [
        killed_unix_s,
        exited["ended_unix_s"],
        decided("retry", number)[0][0],
        decided("launch", number + 1)[0][0],
        started["started_unix_s"],
        output.lines("began")[number].unix_ns / 1e9,
        next(line for line in output.lines("step") if line.pid == output.lines("began")[number].pid).unix_ns / 1e9,
    ]
    return [after - before for before, after in pairwise(stations)]


def stalls(peers: Peers) -> tuple[Figure, ...]:
    """How long after its limit a stall is flagged, reckoned from the training's own time of its last step."""
    folder, output = _work(peers, "stall")
    rule = f"grace_s = 2.0\nsave_s = 0.5\n[jobs.{JOB}.rules.stall]\nlimit_s = {STALL_LIMIT_S}\n"
    training = [peers.train_python, TRAINING, output.path, "--beat", "agent", "--hang-after", "20"]
    with supervised(folder, job_of(training, rule)) as house:
        until(lambda: len(output.lines("began")) > STALLS, STALLS * 30, f"{STALLS} stalls")
        found = [incident for incident in house.incidents() if incident["rule"] == "stall"]
    pids = [line.pid for line in output.lines("began")]
    last_unix_s = {line.pid: line.unix_ns / 1e9 for line in output.lines("step")}
    late = [match["at"] - last_unix_s[pids[match["attempt"] - 1]] - STALL_LIMIT_S for match in found[:STALLS]]
    theirs = peers.asked("NVRx, to SIGKILL (it looks every 5 s)", nvrx, lambda found: [found.hang_found_s])
    return (Figure(name="stall found, after its limit", unit="s", values=late, limit=0.5, peers=(theirs,)),)


def faults(peers: Peers) -> tuple[Figure, ...]:
    """From a line in the kernel's log to SIGTERM in the training, evidence included."""
    name = "kernel log line to SIGTERM"
    if os.geteuid() != 0 or not os.access(KMSG, os.W_OK):
        return (Figure(name=name, unit="s", why="not measured: needs root and /dev/kmsg", limit=0.2),)
    folder, output = _work(peers, "fault")
    training = [peers.train_python, TRAINING, output.path, "--beat", "agent"]
    log = "[kernel_log]\naccept_user_records = true\n"
    values = []
    with supervised(folder, log + job_of(training)):
        for number in range(FAULTS):
            output.wait("began", number, START_LIMIT_S)
            output.steps_on(30, START_LIMIT_S)
            written_ns = time.monotonic_ns()
            KMSG.write_text(FAULT)
            values.append((output.wait("told", number, START_LIMIT_S).monotonic_ns - written_ns) / 1e9)
    return (Figure(name=name, unit="s", values=values, limit=0.2),)


def _work(peers: Peers, name: str) -> tuple[Path, Output]:
    return peers.folder / name, Output(peers.folder / f"{name}.said")
