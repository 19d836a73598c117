"""Plants what holds a training back, 60 times, and compares the verdicts of the tuner's diagnosis with it.

    python tests/bench/verdicts.py --train-python PYTHON [--device cpu|cuda] [--only data-bound ...] [--part 1/2]
                                   [--record FILE] [--cards 1] [--limit-s 190]

`verdicts_training.py` is the training. The diagnosis is that of `supervisorctl tune --dry-run`: steps read from the
flight recorder, and some traced by the agent. What was planted is known by its sizes alone: the loader, the program and
the model take times that are set against each other. A line of each case is kept in the record; what is in it is not
run again. The table counts verdicts by what was planted.
"""

# ruff: noqa: T201 - a benchmark prints

from __future__ import annotations

import argparse
import json
import os
import signal
import socket
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT)]

from supervisor.control import record_types, types  # noqa: E402 (after the path is set)
from supervisor.core import attempt_files as fo  # noqa: E402 (the same)
from supervisor.daemon.clock import SystemClock  # noqa: E402 (the same)
from supervisor.daemon.tunes.tune import Tune  # noqa: E402 (the same)
from tests.rigs.warm import RANKS, WarmInterpreter, WarmProgram, start_interpreter  # noqa: E402 (the same)

SCRIPT = Path(__file__).with_name("verdicts_training.py")
LIMIT_S = 120.0
CASE: dict[str, Any] = {"data": 0.0, "host": 0.0, "ranks": 1, "batch": 64}
KINDS = ("data-bound", "host-bound", "compute-bound", "GPU-bound", "memory-bound", "communication-bound", "mixed")
PERCEPTRON = {"model": "perceptron", "size": 1024}
CONVOLUTION = {"model": "convolution", "size": 16_384, "batch": 16}
RECURRENCE = {"model": "recurrence", "size": 384, "batch": 48}
ATTENTION = {"model": "attention", "size": 384, "batch": 192}
NORMS, ACTIVATIONS = {"model": "norms", "size": 4}, {"model": "activations", "size": 4}
OPTIMIZER = {"model": "optimizer", "size": 4}
WIDE = {"model": "wide", "size": 60_000, "batch": 1, "ranks": 2}

Case = dict[str, Any]


def list_cases() -> Iterator[tuple[str, Case]]:
    """Yield what is planted, and the case: ten of each kind."""
    for model in (PERCEPTRON, CONVOLUTION, ACTIVATIONS):
        yield from (("data-bound", {**model, "data": data}) for data in (0.5, 2.0))
    yield "data-bound", {**ATTENTION, "data": 4.0, "workers": 1}
    yield "data-bound", {**OPTIMIZER, "data": 4.0, "workers": 2}
    yield "data-bound", {**RECURRENCE, "data": 1.0, "computes": True}
    yield "data-bound", {**PERCEPTRON, "data": 3.0, "host": 0.3}
    for model in (PERCEPTRON, CONVOLUTION, ACTIVATIONS):
        yield from (("host-bound", {**model, "host": host}) for host in (0.7, 2.0))
    yield "host-bound", {**ATTENTION, "host": 1.5, "sleeps": True}
    yield "host-bound", {**PERCEPTRON, "host": 2.0, "data": 0.2}
    yield "host-bound", {"model": "small", "size": 100}
    yield "host-bound", {"model": "small", "size": 400}
    for kind, models in (
        ("compute-bound", (PERCEPTRON, CONVOLUTION, RECURRENCE, ATTENTION)),
        ("memory-bound", (ACTIVATIONS, NORMS, OPTIMIZER)),
    ):
        cases = [{**model, **more} for more in ({}, {"workers": 1}, {"data": 0.05}, {"host": 0.1}) for model in models]
        yield from ((kind, case) for case in cases[:10])
    for by_hand in (False, True):
        wide = {**WIDE, "by_hand": by_hand}
        yield "communication-bound", wide
        yield "communication-bound", {**wide, "size": 30_000}
        yield "communication-bound", {**wide, "size": 120_000}
        yield "communication-bound", {**wide, "data": 0.1}
        yield "communication-bound", {**wide, "host": 0.15}
    for model in (PERCEPTRON, CONVOLUTION, ACTIVATIONS, ATTENTION):
        yield "mixed", {**model, "data": 1.5, "host": 1.5}
    yield "mixed", {**RECURRENCE, "data": 1.0, "host": 1.4}
    yield "mixed", {**OPTIMIZER, "data": 1.2, "host": 0.9}
    for by_hand, part in ((False, 0.5), (True, 0.8)):  # of a step under DDP a third waits for ranks, by hand two thirds
        yield "mixed", {**WIDE, "by_hand": by_hand, "data": part}
        yield "mixed", {**WIDE, "by_hand": by_hand, "host": part}


def list_gpu_cases(cards: int) -> Iterator[tuple[str, Case]]:
    """Yield what is planted on a GPU, and the case: sizes that fill it; ranks that wait where there are two of them."""
    perceptron = {"model": "perceptron", "size": 8192, "batch": 4096}
    convolution = {"model": "convolution", "size": 131_072, "batch": 256, "channels": 128}
    attention = {"model": "attention", "size": 3072, "batch": 2048}
    activations, norms, optimizer = ({"model": name, "size": 128} for name in ("activations", "norms", "optimizer"))
    copies = {"model": "copies", "size": 256}
    small = {"model": "small", "size": 200}
    wide = {"model": "wide", "size": 1_000_000, "batch": 1, "ranks": 2}
    for model in (perceptron, activations, attention, optimizer):
        yield from (("data-bound", {**model, "data": data}) for data in (0.5, 2.0))
    yield "data-bound", {**perceptron, "data": 4.0, "workers": 2}
    yield "data-bound", {**convolution, "data": 1.0, "computes": True}
    for model in (perceptron, activations, attention):
        yield from (("host-bound", {**model, "host": host}) for host in (0.7, 2.0))
    yield "host-bound", {**convolution, "host": 1.5, "sleeps": True}
    yield "host-bound", {**perceptron, "host": 2.0, "data": 0.2}
    yield "host-bound", small
    yield "host-bound", {**small, "size": 800}
    for model in (perceptron, convolution, attention):
        yield "GPU-bound", model
        yield "GPU-bound", {**model, "workers": 1}
        yield "GPU-bound", {**model, "data": 0.05}
    yield "GPU-bound", {**perceptron, "host": 0.1}
    for model in (activations, norms, optimizer, copies):
        yield "memory-bound", model
        yield "memory-bound", {**model, "data": 0.05}
    yield "memory-bound", {**copies, "pinned": True}
    yield "memory-bound", {**activations, "host": 0.1}
    for model in (perceptron, activations, attention, convolution, optimizer):
        yield "mixed", {**model, "data": 1.5, "host": 1.5}
        yield "mixed", {**model, "data": 1.0, "host": 1.4}
    for by_hand in (False, True) if cards > 1 else ():
        yield "communication-bound", {**wide, "by_hand": by_hand}
        yield "communication-bound", {**wide, "by_hand": by_hand, "size": 2_000_000}
        yield "communication-bound", {**wide, "by_hand": by_hand, "size": 500_000}
        yield "communication-bound", {**wide, "by_hand": by_hand, "data": 0.1}
        yield "communication-bound", {**wide, "by_hand": by_hand, "host": 0.1}


def diagnose(interpreter: WarmInterpreter, case: Case, state: Path) -> record_types.TuneReport:
    """Return the report of a tune that tries nothing, of a training of its own."""
    folder = state / "jobs" / "bench" / "1"
    (folder / fo.RUN).mkdir(parents=True)
    argv = [str(interpreter.python), str(SCRIPT), json.dumps(case)]
    (folder / fo.LAUNCH).write_text(json.dumps({"argv": argv, "env": {}}))
    programs: list[WarmProgram] = []
    with (state / "errors").open("wb") as errors:
        try:
            for rank in range(case["ranks"]):
                programs.append(interpreter.start(argv, list_environment(folder, case, rank), state, errors.fileno()))
            wait_for_steps(folder, programs)
            given = types.TuneBody(dry_run=True)
            tune = Tune(SystemClock(), "bench", folder, given, lambda: find_ended(programs, state))
            tune.start()
            tune.join(LIMIT_S)
            tune.ended.set()
            tune.join(LIMIT_S)
            return tune.report()
        finally:
            for program in programs:
                program.kill()
                program.wait()


def list_environment(folder: Path, case: Case, rank: int) -> dict[str, str]:
    """Return the environment of a rank."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("ROCM_", "PYTHON"))}
    ours = {fo.ENV_FOLDER: str(folder / fo.RUN), "OMP_NUM_THREADS": "1"}
    if case["ranks"] == 1:
        return kept | ours
    ranks = {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(case["ranks"])}
    return kept | ours | ranks | {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(_port_of(folder))}


def _port_of(folder: Path) -> int:
    """Return a port that was free when this folder was first asked about."""
    path = folder / "port"
    if not path.exists():
        with socket.socket() as found:
            found.bind(("127.0.0.1", 0))
            path.write_text(str(found.getsockname()[1]))
    return int(path.read_text())


def wait_for_steps(folder: Path, programs: list[WarmProgram]) -> None:
    """Return once some steps were made after those that are measured; raise RuntimeError where it ends before."""
    until_s = time.perf_counter() + LIMIT_S
    while count_steps(folder) < 14:
        if any(program.poll() is not None for program in programs) or time.perf_counter() > until_s:
            raise RuntimeError("the training ended, or makes no steps")
        time.sleep(0.02)


def count_steps(folder: Path) -> int:
    """Return how many steps were made."""
    recorder = folder / fo.RECORDER
    if not recorder.exists() or recorder.stat().st_size < fo.HEADER_BYTES:
        return 0
    with recorder.open("rb") as file:
        return int(fo.HEAD.unpack_from(file.read(fo.HEADER_BYTES), fo.HEAD_OFFSET)[0])


def find_ended(programs: list[WarmProgram], state: Path) -> str | None:
    """Return why a training ended, None while it runs."""
    ended = [program.returncode for program in programs if program.poll() is not None]
    return f"ended with {ended}: {(state / 'errors').read_text()[-500:]}" if ended else None


def say_case(number: int, planted: str, case: Case, report: record_types.TuneReport) -> dict[str, Any]:
    """Print what became of a case; return its line of the record."""
    found = report.bottleneck.before or "none"
    mark = "" if found == planted else "   <- WRONG"
    print(f"{number:3} {planted:20} {found:20} {report.why} {report.problem or ''}{mark}", flush=True)
    return {"number": number, "planted": planted, "found": found, "why": report.why, "case": case}


def print_table(rows: list[dict[str, Any]]) -> None:
    """Print the verdicts by what was planted."""
    counts = Counter((row["planted"], row["found"]) for row in rows)
    columns = [*KINDS, *sorted({row["found"] for row in rows} - {*KINDS})]
    print(f"\n{'planted':22}" + "".join(f"{name[:12]:>14}" for name in columns))
    for planted in sorted({row["planted"] for row in rows}, key=lambda name: [*columns, name].index(name)):
        print(f"{planted:22}" + "".join(f"{counts[planted, found]:14}" for found in columns))
    right = sum(row["planted"] == row["found"] for row in rows)
    print(f"right: {right} of {len(rows)} (must be 59 of 60)")


def main() -> None:
    """Diagnose each case, print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--train-python", type=Path, required=True)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--only", nargs="+", default=None)
    parser.add_argument("--part", default="1/1", help="1/2: every second case, from the first one on")
    parser.add_argument("--record", type=Path)
    parser.add_argument("--cards", type=int, default=1, help="GPUs that there are")
    parser.add_argument("--limit-s", type=float, default=86_400.0, help="no case is begun after it")
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the training is ended
    cases = list(list_cases() if given.device == "cpu" else list_gpu_cases(given.cards))
    # One of each kind first, then the next ones: what is cut short has of all kinds.
    kinds = Counter[str]()
    turns = {number: (kinds.update([planted]), kinds[planted])[1] for number, (planted, _) in enumerate(cases)}
    order = sorted(turns, key=lambda number: turns[number]) if given.device == "cuda" else list(turns)
    began_s = time.perf_counter()
    part, parts = map(int, given.part.split("/"))
    lines = given.record.read_text().splitlines() if given.record is not None and given.record.exists() else []
    rows: list[dict[str, Any]] = [json.loads(line) for line in lines]
    interpreter = start_interpreter(given.train_python, RANKS, os.getpid())
    for turn, number in enumerate(order):
        planted, case = cases[number]
        if time.perf_counter() - began_s > given.limit_s:
            break
        left_out = turn % parts != part - 1 or (given.only is not None and planted not in given.only)
        if left_out or any(row["number"] == number for row in rows):
            continue
        whole = {**CASE, "device": given.device, **case}
        with tempfile.TemporaryDirectory(prefix="verdict-", ignore_cleanup_errors=True) as place:
            try:
                report = diagnose(interpreter, whole, Path(place))
            except RuntimeError as error:  # its row says so
                report = record_types.TuneReport(job="bench", state="ended", problem=f"{error}")
            rows.append(say_case(number, planted, whole, report))
        if given.record is not None:
            with given.record.open("a") as file:
                file.write(json.dumps(rows[-1]) + "\n")
    print_table(rows)


if __name__ == "__main__":
    main()
