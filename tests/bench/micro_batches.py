"""The micro-batch that the estimator chooses beside the largest that runs, and beside what other tools choose.

    python -m tests.bench.micro_batches [--limit-s 480] [--part 1/2] [--jobs 2] [--only NAME] [--json FILE]
                                        [--with-cudnn]

Runs in the interpreter that it is started with, which has torch and the networks' packages (`estimates_models.py`), on
one NVIDIA or AMD GPU. First the choices of `supervisorctl estimate`, one after the other, each from its own process
that loads the training once, with two times: from its start, and from when it was loaded, where it first uses the GPU.
There are ten networks in four rooms (ROOMS), of which one in two is half filled in the reckoning. Meanwhile the
largest micro-batch that runs is found for those that are chosen, each that is tried in a process of its own, so that a
choice shares the GPU and its time is an upper bound; with `--jobs 0` it is not looked for, and choices are timed by
themselves. Then a choice in a GPU that is half filled by another program, and what Lightning's batch size finder,
ultralytics' AutoBatch and accelerate's find_executable_batch_size come to there, in a process that has imported torch
and initialised the GPU before. Pictures of `yolo:yolov8n` have eight targets each, those of
`:varied` 1 to 30, of `:tailed` few, seldom up to 93.
After `--limit-s` nothing is begun. `--part 1/2` does the first half, of networks and of other tools. `--with-cudnn` has
cuDNN in every probe, to compare: else it is left out where it prepares depthwise convolutions for seconds.
"""

# ruff: noqa: T201 - a benchmark prints

from __future__ import annotations

import argparse
import concurrent.futures
import gc
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
# The package of the same name that may be installed must not come first.
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "bench")]

from estimates import BATCHES, GIB, MODELS, Trainings  # noqa: E402 (after the path is set)

from supervisor.core.memory.estimate import (  # noqa: E402 (after the path is set)
    PROOF_STEPS,
    estimate,
    find_proof_room,
    prove_largest,
)
from supervisor.core.memory.points import Point  # noqa: E402 (after the path is set)
from supervisor.core.memory.probing import collect_points  # noqa: E402 (after the path is set)
from supervisor.runner.loaded_probe import LoadedProbe  # noqa: E402 (after the path is set)
from supervisor.runner.memory_probe import Command, WhatIf  # noqa: E402 (after the path is set)

HERE = Path(__file__).resolve().parent
TRUE_STEPS = 3
BATCHES.update({"tv:vit_b_16": (32, "bf16"), "tv:efficientnet_b0": (32, "bf16")})
BATCHES.update({"yolo:yolov8n:varied": (8, "fp32"), "yolo:yolov8n:tailed": (8, "fp32")})
BATCHES.update({"tv:efficientnet_b0:last": (32, "bf16"), "tv:mobilenet_v3_large:last": (32, "bf16")})
NAMES = (
    "tv:resnet50", "hf:gpt2", "tv:convnext_tiny", "hf:bert", "tv:vit_b_16", "tv:mobilenet_v3_large", "hf:qwen3",
    "tv:deeplab", "hf:t5", "tv:efficientnet_b0",
)  # fmt: skip
"""They need torchvision and transformers. `--only` may name further ones of BATCHES."""
ROOMS = ((10, 0), (24, 12), (14, 0), (32, 16))
"""GiB of a card, and of them those that another program holds."""
PEERS = {
    "tv:resnet50": "lightning", "hf:gpt2": "lightning", "yolo:yolov8n": "autobatch", "yolo:yolov8n:varied": "autobatch",
}  # fmt: skip
"""With those networks a choice is made in a GPU that is half filled."""
LARGE = 2048
"""At which find_executable_batch_size begins."""
FURTHER_STEPS = 5
"""Of 5 % above the chosen micro-batch, in which the largest is looked for."""
LIMIT_S = 12.0
SHARE = 0.93
BEGAN_S = time.perf_counter()

Row = dict[str, Any]


def say(text: str) -> None:
    """Print at once, with the time since the beginning."""
    print(f"[{time.perf_counter() - BEGAN_S:6.1f} s] {text}", flush=True)


class Probes:
    """Probes of one network, from a process that has loaded it once."""

    def __init__(self, name: str, *, skips_cudnn: bool = True) -> None:
        """`skips_cudnn`: whether cuDNN may be left out of depthwise convolutions, as the command does."""
        self.name, self.batch, self._skips_cudnn = name, BATCHES[name][0], skips_cudnn
        argv = [sys.executable, str(MODELS), name, str(self.batch), BATCHES[name][1], "99"]
        env = {"OMP_NUM_THREADS": "2", "YOLO_OFFLINE": "true"}
        self.loaded = LoadedProbe(Command(argv=argv, cwd="/tmp", env=env, limit_s=100.0))
        self._marked_s = self._began_s = time.perf_counter()
        self.loaded_s: float | None = None
        self.took: list[str] = []
        """What each probe took, in seconds."""

    def look(self) -> None:
        """Look at the first batch, as the command does before it probes."""
        self.loaded_s = self.loaded.probe(WhatIf(look=True)).loaded_s
        self._mark("look")

    def measure(self, count: int) -> Point | None:
        """Return the point at a micro-batch; None where it does not run."""
        found = self.loaded.probe(WhatIf(batch=count, configured=self.batch, skips_cudnn=self._skips_cudnn))
        self._mark(f"{count} without cuDNN" if found.point and found.point.without_cudnn else str(count))
        if found.point is None:
            say(f"  {self.name} at {count}: {found.problem}\n{found.output[-1500:]}")
        return found.point

    def rehearse(self, like: WhatIf, count: int) -> bool | None:
        """Whether some steps at a micro-batch probably run, as the command rehearses it."""
        ran = self.loaded.rehearse(replace(like, batch=count, configured=self.batch))
        if ran is not None:
            self._mark(f"rehearsed {count}")
        return ran

    def runs(self, like: WhatIf, count: int) -> bool:
        """Whether some steps run at a micro-batch, as the command tries it."""
        found = self.loaded.probe(replace(like, batch=count, configured=self.batch), proof=True)
        self._mark(f"proof {count}")
        return found.point is not None and found.point.batch == count

    def _mark(self, what: str) -> None:
        now_s = time.perf_counter()
        self.took.append(f"{what} {now_s - self._marked_s:.1f}")
        self._marked_s = now_s

    def choose(self, card_bytes: int, other_bytes: int | None = None) -> Row:
        """Make a choice as the command does; return it with its times."""
        with self.loaded:
            self.look()
            points, reckoned, chosen = choose(self, card_bytes, other_bytes)
        took_s = time.perf_counter() - self._began_s
        loaded = "" if self.loaded_s is None else f"loaded after {self.loaded_s:.1f} s, "
        say(f"  {self.name}: {loaded}{', '.join(self.took)} s; {self.loaded.why_alone or 'loaded once'}")
        return {
            "name": self.name,
            "reckoned": reckoned,
            "chosen": chosen,
            "took_s": took_s,
            "since_loaded_s": None if self.loaded_s is None else took_s - self.loaded_s,
            "took": self.took,
            "probed": max(point.reserved_bytes or 0 for point in points),
        }


def choose(probes: Probes, card_bytes: int, other_bytes: int | None = None) -> tuple[list[Point], int, int]:
    """Return the points, the micro-batch that the estimator reckons for a card, and the one that it has seen to run.

    `other_bytes` are what others hold of it; None: what the probes found, on a card as large as it is.
    """

    def measure(count: int) -> Point | None:
        found = probes.measure(count)
        return found if found is None or other_bytes is None else replace(found, other_bytes=other_bytes)

    known = collect_points(measure, probes.batch, card_bytes)
    reckoned = estimate(known, probes.batch, card_bytes).largest_micro_batch or 0
    room = find_proof_room(known, card_bytes, is_own_card=other_bytes is None)
    without = any(point.without_cudnn for point in known)
    no_attention = any(point.without_cudnn_attention for point in known)
    ran = [point.batch for point in known if point.batch is not None]
    like = WhatIf(steps=PROOF_STEPS, room_bytes=room, without_cudnn=without, without_cudnn_attention=no_attention)
    largest = prove_largest(reckoned, ran, partial(probes.runs, like), partial(probes.rehearse, like))
    return known, reckoned, largest


class Child:
    """A process of this file that answers a line with a line."""

    def __init__(self, *words: str) -> None:
        argv = [sys.executable, "-m", "tests.bench.micro_batches", *words]
        self._process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def ask(self, question: Sequence[object]) -> Any:
        """Return the answer; raise RuntimeError with what it has printed where it ended."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(question) + "\n")
        self._process.stdin.flush()
        printed = []
        for line in self._process.stdout:
            if line.startswith("answer "):
                return json.loads(line.removeprefix("answer "))
            printed.append(line)
        ended = f"a process ended with {self._process.wait()} when asked {question}"
        raise RuntimeError("\n".join([ended, *printed]))

    def end(self) -> None:
        """End it."""
        self._process.kill()
        self._process.wait()


@contextmanager
def child(*words: str) -> Iterator[Child]:
    """Give a process, which is ended afterwards."""
    found = Child(*words)
    try:
        yield found
    finally:
        found.end()


# --- in a process with torch --------------------------------------------------------------------------------------


def answer_each(answers: Any) -> None:
    """Answer each question of the standard input."""
    for line in sys.stdin:
        print("\nanswer " + json.dumps(answers(*json.loads(line))), flush=True)


def serve_truth(name: str) -> None:
    """Find largest micro-batches that run, within a room (bytes) or without any.

    Each is tried in a process of its own, as a training is: a fork of one that has imported torch and not used the GPU.
    """
    sys.path.insert(0, str(HERE))
    import torch  # noqa: PLC0415 - the parent needs none
    from estimates_models import build  # noqa: PLC0415 - lies next to this file

    os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")  # who has asked the driver cannot be forked
    torch.set_num_threads(1)  # a fork would wait for ever for threads that it lacks
    build(name)  # type: ignore[no-untyped-call]  # the forks have what it imports

    def find(chosen: int, room_bytes: int | None) -> Row:
        trainings = NewTrainings(name, room_bytes)
        largest = trainings.find_largest(max(1, chosen))
        return {"largest": largest, "runs": trainings.tried.get(chosen, False), "tried": len(trainings.tried)}

    answer_each(find)


class NewTrainings:
    """Runs one network's training at one micro-batch after the other, each in a new process.

    What earlier ones leave in a process, the workspaces of cuBLAS for one, lies elsewhere in the memory of the next:
    of BERT in 12 GiB 21 run after 18, 19 and 20, and no more than 19 in a new process.
    """

    def __init__(self, name: str, room_bytes: int | None) -> None:
        self.tried: dict[int, bool] = {}
        self._network, self._room_bytes = name, room_bytes

    def fits(self, count: int) -> bool:
        """Return what `run` did at a micro-batch, tried once."""
        if count not in self.tried:
            self.tried[count] = self.run(count)
        return self.tried[count]

    def find_largest(self, chosen: int) -> int:
        """Return the largest micro-batch that runs, found from the chosen one in steps of 5 %, then by halves."""
        low, high = chosen, max(chosen + 1, round(chosen * 1.05))
        while low > 0 and not self.fits(low):
            low, high = int(low * 0.95), low
        while high < 4 * chosen and self.fits(high):
            low, high = high, round(high * 1.05) + 1
        while high - low > max(1, low // 100):
            middle = (low + high) // 2
            low, high = (middle, high) if self.fits(middle) else (low, middle)
        return low

    def run(self, count: int) -> bool:
        """Train a few steps in a fork; return whether the memory sufficed."""
        pid = os.fork()
        if pid == 0:
            ended = 2
            try:
                ended = 0 if self._train_here(count) else 1
            except BaseException as error:  # noqa: BLE001 - a fork must not go on as its parent
                # So cuDNN 9 ends a YOLO at 344 pictures, of which 328 take half of an H200.
                ended = 1 if "unable to find an engine" in str(error) else 2
                say(f"{self._network} at {count}: {type(error).__name__}: {error}")
            finally:
                os._exit(ended)
        ended = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        if ended not in {0, 1}:
            raise RuntimeError(f"a training of {self._network} at {count} ended with {ended}")
        return ended == 0

    def _train_here(self, count: int) -> bool:
        trainings = Trainings(self._network)
        trainings.steps = TRUE_STEPS
        if self._room_bytes is not None:
            total = trainings.cuda.get_device_properties(0).total_memory
            trainings.cuda.set_per_process_memory_fraction(self._room_bytes / total)
        return trainings.run(count)


def serve_filler() -> None:
    """Hold a share of the GPU's memory."""
    import torch  # noqa: PLC0415 - the parent needs none

    held: list[Any] = []

    def hold(share: float) -> Row:
        free, total = torch.cuda.mem_get_info()
        held.append(torch.empty(int(min(share * total, 0.95 * free)), dtype=torch.uint8, device="cuda"))
        return {"total": total, "free": torch.cuda.mem_get_info()[0], "name": torch.cuda.get_device_name()}

    answer_each(hold)


def serve_peer(kind: str, name: str) -> None:
    """Choose a micro-batch as another tool does, and say how long that took."""
    sys.path.insert(0, str(HERE))
    choosing: dict[str, Callable[..., object]] = {
        "lightning": choose_by_lightning,
        "autobatch": choose_by_autobatch,
        "accelerate": choose_by_accelerate,
    }

    def answer(*given: Any) -> Any:
        import torch  # noqa: PLC0415 - as above

        torch.cuda.init()
        began_s = time.perf_counter()
        found = choosing[kind](name, *given)
        return {"found": found, "took_s": time.perf_counter() - began_s}

    answer_each(answer)


def choose_by_lightning(name: str, mode: str) -> int:
    """Return what Lightning's finder chooses."""
    import lightning  # type: ignore[import-not-found, unused-ignore] # noqa: PLC0415
    import torch  # noqa: PLC0415 - as above
    from estimates_models import Batches, build, move  # noqa: PLC0415 - lies next to this file

    network, batch_of, loss_of = build(name)  # type: ignore[no-untyped-call]  # a script
    batch, precision = BATCHES[name]

    class Module(lightning.LightningModule):  # type: ignore[misc, unused-ignore]
        def __init__(self) -> None:
            super().__init__()
            self.network, self.batch_size = network, batch

        def training_step(self, drawn: Any, _: int) -> Any:
            return loss_of(self.network, move(drawn, self.device))  # type: ignore[no-untyped-call]

        def configure_optimizers(self) -> Any:
            return torch.optim.AdamW(self.parameters(), lr=1e-5)

        def train_dataloader(self) -> Any:
            return torch.utils.data.DataLoader(
                Batches(), batch_size=self.batch_size, collate_fn=lambda chosen: batch_of(len(chosen))
            )

    trainer = lightning.Trainer(
        accelerator="gpu",
        devices=1,
        precision="bf16-mixed" if precision == "bf16" else "32-true",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=tempfile.gettempdir(),
    )
    finder = lightning.pytorch.tuner.Tuner(trainer)
    return int(finder.scale_batch_size(Module(), mode=mode, init_val=batch) or 0)


def choose_by_autobatch(name: str) -> int:
    """Return what ultralytics' AutoBatch chooses."""
    from estimates_models import build  # noqa: PLC0415 - as above
    from ultralytics.utils.autobatch import autobatch  # type: ignore[import-not-found, unused-ignore] # noqa: PLC0415

    network, *_ = build(name)  # type: ignore[no-untyped-call]
    for parameter in network.parameters():
        parameter.requires_grad_()
    return int(autobatch(network.cuda().train(), imgsz=640, batch_size=BATCHES[name][0]))


def choose_by_accelerate(name: str) -> int:
    """Return what accelerate's find_executable_batch_size comes to: it halves from a large one until steps run.

    It ends where cuBLAS or cuDNN finds no memory for what it holds itself; then it is begun again from half as many, as
    whoever uses it would.
    """
    import torch  # noqa: PLC0415 - as above
    from accelerate.utils import find_executable_batch_size  # type: ignore[import-not-found, unused-ignore] # noqa: PLC0415
    from estimates_models import train  # noqa: PLC0415 - as above

    def find(begins: int) -> int | None:
        @find_executable_batch_size(starting_batch_size=begins)  # type: ignore[untyped-decorator, unused-ignore]
        def run(batch_size: int) -> int:
            train(name, batch_size, BATCHES[name][1], TRUE_STEPS)  # type: ignore[no-untyped-call]
            return batch_size

        try:
            return int(run())
        except RuntimeError as error:
            say(f"  accelerate's finder, begun at {begins}, ended: {str(error).strip().splitlines()[0][:160]}")
            return None

    begins = LARGE
    while (found := find(begins)) is None and begins > 1:
        begins //= 2
        gc.collect()
        torch.cuda.empty_cache()
    return found or 0


# --- the choices --------------------------------------------------------------------------------------------------


class Choices:
    """What was chosen and what runs, as far as there was time."""

    def __init__(self, given: argparse.Namespace) -> None:
        self._given, self._lock = given, threading.Lock()
        self.rows: list[Row] = []
        self.peers: list[Row] = []
        self.choices: list[Row] = []
        """Of which not all need have a largest micro-batch that was looked for."""

    def is_over(self) -> bool:
        """Whether nothing more is to be begun."""
        return time.perf_counter() - BEGAN_S > float(self._given.limit_s)

    def note(self, row: Row) -> None:
        """Keep and print a choice."""
        with self._lock:
            self.rows.append(row)
            share = row["chosen"] / row["largest"] if row["largest"] else 0.0
            mark = "" if row["runs"] else "  OUT OF MEMORY"
            took = f" {row['took_s']:5.1f} s"
            took += f" ({row['since_loaded_s']:.1f} s loaded)" if row["since_loaded_s"] is not None else ""
            found = " ".join(f"{name} {row[name]:5}" for name in ("reckoned", "chosen", "largest"))
            say(f"{row['name']:28} {row['room']:>22} {found} {share:6.1%}{took}{mark}")
            self._write()

    def _time(self, chosen: Row) -> None:
        """Keep a choice and its times."""
        with self._lock:
            self.choices.append(chosen)
            self._write()

    def _write(self) -> None:
        if self._given.json is not None:
            found = {"rows": self.rows, "choices": self.choices, "peers": self.peers}
            self._given.json.write_text(json.dumps(found))

    def choose_in_half(self, names: Sequence[str]) -> None:
        """Choose in a half-filled card, one after the other, and ask the peers."""
        if not names or self.is_over():
            return
        with child("--filler") as filler:
            held = filler.ask([0.5])
            say(f"{held['name']}: {held['total'] / GIB:.1f} GiB, {held['free'] / GIB:.1f} GiB free")
            for name in names:
                if not self.is_over():
                    self._fenced(name, lambda name=name: self._choose_in_half(name, held["total"]))

    def _choose_in_half(self, name: str, card_bytes: int) -> None:
        chosen = Probes(name, skips_cudnn=not self._given.with_cudnn).choose(card_bytes)
        self._time(chosen)
        with child("--truth", name) as truth:
            found = truth.ask([chosen["chosen"], None])
        self.note({**chosen, "room": "half of the card", **found})
        modes = {"lightning": (["power"], ["binsearch"]), "autobatch": ([],)}
        for peer, given in (*((PEERS[name], mode) for mode in modes[PEERS[name]]), ("accelerate", [])):
            if not self.is_over():
                self._fenced(f"{peer} {name}", lambda peer=peer, given=given: self._ask_peer(peer, name, given, found))

    def _ask_peer(self, peer: str, name: str, given: list[str], found: Row) -> None:
        with child("--peer", peer, name) as asked:
            answer = asked.ask(given)
        row = {"peer": " ".join([peer, *given]), "name": name, **answer, "largest": found["largest"]}
        share = answer["found"] / found["largest"] if found["largest"] else 0.0
        mark = "  MORE THAN RUNS" if share > 1 else ""
        say(f"  {row['peer']:20} {answer['found']:5} {share:6.1%} {answer['took_s']:5.1f} s{mark}")
        self.peers.append(row)

    def choose_in_rooms(self, names: Sequence[str]) -> None:
        """Choose for each network and room, one after the other; meanwhile find what runs in it."""
        with concurrent.futures.ThreadPoolExecutor(max(1, self._given.jobs)) as pool:
            for name in names:
                chosen: list[tuple[int, int, Row]] = []
                for card, filled in ROOMS:
                    if not self.is_over():
                        self._fenced(name, partial(self._choose_in_room, name, card, filled, chosen))
                if self._given.jobs:
                    pool.submit(self._fenced, name, partial(self._find_truths, name, chosen))

    def _choose_in_room(self, name: str, card: int, filled: int, chosen: list[tuple[int, int, Row]]) -> None:
        # Others share the GPU here: what they hold of it is left out, and what a filler would hold is put in.
        row = Probes(name, skips_cudnn=not self._given.with_cudnn).choose(card * GIB, filled * GIB)
        self._time(row)
        chosen.append((card, filled, row))

    def _find_truths(self, name: str, chosen: Sequence[tuple[int, int, Row]]) -> None:
        with child("--truth", name) as truth:
            for card, filled, row in chosen:
                found = truth.ask([row["chosen"], (card - filled) * GIB])
                self.note({**row, "room": f"{card} GiB, {filled} filled" if filled else f"{card} GiB", **found})

    def _fenced(self, name: str, do: Any) -> None:
        try:
            do()
        except Exception as error:  # noqa: BLE001 - a network that fails is a row that is missing
            say(f"{name}: {type(error).__name__}: {error}")

    def print_table(self) -> None:
        """Print what the rows come to."""
        self._print_times()
        if not self.rows:
            say("of no choice it was looked for what runs")
            return
        shares = [row["chosen"] / row["largest"] for row in self.rows if row["largest"]]
        ended = sum(not row["runs"] for row in self.rows)
        low = sum(share < SHARE for share in shares)
        print(f"\nchosen micro-batches: {len(self.rows)}, out of memory {ended} (must be 0)")
        print(
            f"share of the largest that runs: median {statistics.median(shares):.1%} "
            f"({min(shares):.1%}-{max(shares):.1%}), below {SHARE:.0%}: {low} of {len(shares)}"
        )
        for row in self.peers:
            print(f"{row['peer']:20} {row['name']:28} {row['found']} of {row['largest']}, {row['took_s']:.1f} s")
        sys.stdout.flush()

    def _print_times(self) -> None:
        for key, words in (("took_s", "time of a choice"), ("since_loaded_s", "of it since the command was loaded")):
            times = [row[key] for row in self.choices if row[key] is not None]
            if not times:
                continue
            middle = f"median {statistics.median(times):.1f} s ({min(times):.1f}-{max(times):.1f}), n={len(times)}"
            late = sum(took_s > LIMIT_S for took_s in times)
            late_text = f" (must be {LIMIT_S:.0f} s; {late} took longer)" if key == "took_s" else ""
            print(f"{words}: {middle}{late_text}")


def main() -> None:
    """Measure and print."""
    serving: dict[str, Callable[..., None]] = {"--truth": serve_truth, "--filler": serve_filler, "--peer": serve_peer}
    if sys.argv[1:2] and sys.argv[1] in serving:
        serving[sys.argv[1]](*sys.argv[2:])
        return
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--limit-s", type=float, default=480.0)
    parser.add_argument("--part", default="1/1", help="1/2: the first of two parts, each on its own GPU")
    parser.add_argument("--jobs", type=int, default=2, help="networks whose largest micro-batch is looked for at once")
    parser.add_argument("--only", nargs="*", default=NAMES)
    parser.add_argument("--peers", nargs="*", default=list(PEERS), choices=list(PEERS))
    parser.add_argument("--json", type=Path)
    parser.add_argument("--with-cudnn", action="store_true")
    given = parser.parse_args()
    choices = Choices(given)

    def end(*_: object) -> None:
        choices.print_table()
        os._exit(143)

    signal.signal(signal.SIGTERM, end)
    part, parts = (int(number) for number in given.part.split("/"))
    choices.choose_in_rooms(given.only[part - 1 :: parts])
    choices.choose_in_half(given.peers[part - 1 :: parts])
    choices.print_table()


if __name__ == "__main__":
    main()
