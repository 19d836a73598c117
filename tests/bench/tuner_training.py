"""Tunes a living training from bad settings by daemon and command line, and compares with the grid of its knobs.

    python tests/bench/tuner_training.py --train-python PYTHON [--device cuda|cpu] [--size full|tiny] [--tunes 3]
                                         [--only resnet decoder yolo yolo_defaults] [--for 150s] [--steps 800]
                                         [--until-s 90] [--record FILE] [--chosen] [--rounds 7]

`slow_training.py` says what the trainings are. Each tune's settings are undone by the command line. After the last
the grid is searched: what multiplies the speed of such a training (workers, pinning and TF32; joined micro-batches,
TF32 and no checkpointing) is set, and every combination of the other knobs is ordered in turn as the daemon orders it
and measured over 40 steps, or 10 that take long: with as many workers as processors, then with twice as many. The best
three, and what each tune has adopted, are then measured again in rounds of one block each, of 240 steps or 12 that take
long, every second round in the opposite order; after three rounds what was adopted and its two best rivals alone. What
a tune has adopted is compared in each round with the one that has the highest median of all other rounds: the share is
the median of the rounds', with its range. Blocks of one setting differ by more than good settings do, so that the
highest of several medians is partly luck, and no luck in a round that had no part in the choice. After `--until-s`
nothing is begun; what was measured is in the record, a line of JSON each, and the same command goes on from there. The
rounds begin when all combinations were measured. `--chosen` leaves out the combinations of which no part is likely to
matter beside half precision and layout.
"""

# ruff: noqa: T201 - a benchmark prints, and measures with the tuner's own eyes

from __future__ import annotations

import argparse
import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
# The package of the same name that may be installed must not come first.
sys.path[:0] = [str(ROOT), str(ROOT / "tests/e2e")]

from house import House, house  # noqa: E402 (after the path is set)

from supervisor.control import types  # noqa: E402 (the same)
from supervisor.core import attempt_files as fo  # noqa: E402 (the same)
from supervisor.core.stats.median import median  # noqa: E402 (the same)
from supervisor.core.tuning.knob import PREFETCH, Facts  # noqa: E402 (the same)
from supervisor.core.tuning.loader import count_switch_steps  # noqa: E402 (the same)
from supervisor.core.tuning.switches import Switches  # noqa: E402 (the same)
from supervisor.daemon.clock import SystemClock  # noqa: E402 (the same)
from supervisor.daemon.tunes.tune import Ended, Tune  # noqa: E402 (the same)
from supervisor.runner import tuned  # noqa: E402 (the same)

SCRIPT = Path(__file__).with_name("slow_training.py")
KINDS = ("resnet", "decoder", "yolo", "yolo_defaults")
FIRST_STEPS = 12
"""The first ones compile, allocate and fill what is drawn ahead."""
GRID_DROPPED = 3
GRID_COLD = 2
"""First halves of a block that are left out where new workers made them."""
GRID_STEPS, GRID_STEPS_MIN, GRID_BLOCK_S = 40, 10, 2.5
AGAIN_STEPS, AGAIN_STEPS_MIN, AGAIN_BLOCK_S = 240, 12, 10.0
"""Four times as many steps as 32 workers have batches drawn ahead, of which a quick net could live in a short block."""
SETTLED_STEPS = {"resnet": 45, "decoder": 4, "yolo": 45, "yolo_defaults": 45}
"""After an undone tune: batches that were drawn ahead are no pace of the owner's settings."""
TUNE_S = 60.0
"""Of a tune: one is begun where as much time is left."""
AGAIN = 7
"""Rounds of the best of the grid and of each tune's adopted settings."""
BEST = 3
EARLY_ROUNDS, RIVALS = 3, 2
"""Rounds after which only so many rivals of what was adopted go on: the time is better spent on more rounds."""
FIXED: Mapping[str, Mapping[str, object]] = {
    "resnet": {"pin_memory": True, "tf32": True},
    "decoder": {"micro_batch": 4, "tf32": True, "checkpointing": False},
    "yolo": {"pin_memory": True, "tf32": True},
    "yolo_defaults": {},
}
"""What is set in each combination, beside the workers."""
CONVOLVING: tuple[Mapping[str, object], ...] = (
    {"channels_last": True},
    {"cudnn_benchmark": True},
    {"fused_optimizer": True},
    {"autocast": "bfloat16"},
)
AXES: Mapping[str, tuple[Mapping[str, object], ...]] = {
    "resnet": CONVOLVING,
    "yolo": CONVOLVING,
    "yolo_defaults": CONVOLVING[:-1],
    "decoder": ({"autocast": "bfloat16"}, {"attention": "sdpa"}, {"fused_optimizer": True}),
}
"""What is set or not, the first one changed last."""
CHOSEN = (
    ("channels_last", "autocast"),
    ("channels_last",),
    ("autocast",),
    (),
    tuple(knob for row in CONVOLVING for knob in row),
)
"""Of the axes of nets that convolve, those that are set in a combination of `--chosen`."""
CPU_AXES: tuple[Mapping[str, object], ...] = (
    {"threads": 2},
    {"channels_last": True},
    {"fused_optimizer": True},
    {"autocast": "bfloat16"},
)
"""Without a GPU, for either kind."""

Settings = Mapping[str, object]
Row = Mapping[str, Any]


class Record:
    """What was measured, a line each, in this run and those before it."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        lines = path.read_text().splitlines() if path is not None and path.exists() else []
        self._rows: list[Row] = [json.loads(line) for line in lines]

    def add(self, kind: str, row: Row) -> None:
        """Keep what was measured of a training."""
        self._rows.append({"kind": kind, **row})
        if self._path is not None:
            with self._path.open("a") as file:
                file.write(json.dumps(self._rows[-1]) + "\n")

    def read(self, kind: str, key: str) -> list[Row]:
        """Return the rows of a training that have a key."""
        return [row for row in self._rows if row["kind"] == kind and key in row]

    def read_tunes(self, kind: str) -> list[Tuned]:
        """Return the tunes of a training."""
        return [Tuned(report=row["tune"], steps=row["steps"], took_s=row["took_s"]) for row in self.read(kind, "tune")]


@dataclass(frozen=True, slots=True, kw_only=True)
class Tuned:
    """What one tune came to."""

    report: Mapping[str, Any]
    steps: int
    took_s: float

    @property
    def row(self) -> Row:
        """Return the line of the record."""
        return {"tune": self.report, "steps": self.steps, "took_s": self.took_s}

    @property
    def gain(self) -> float:
        """By what factor the training became faster."""
        rates = self.report["samples_per_s"]
        return float(rates["after"] / rates["before"]) if rates["before"] and rates["after"] else 1.0

    @property
    def adopted(self) -> Settings:
        """The settings that it adopted."""
        return {row["knob"]: row["value"] for row in self.report["adopted"]}


class Bench:
    """One daemon with a training that is tuned."""

    def __init__(self, item: House, given: argparse.Namespace, record: Record) -> None:
        self._house, self._given, self._record = item, given, record

    def tune(self, kind: str) -> None:
        """Start a training, tune it as often as wanted, search the grid, end it."""
        self._house.client.post(f"/v1/jobs/{kind}/start")
        self._house.step(kind, FIRST_STEPS, limit_s=240)
        say(f"{kind}: steps on {self._given.device}")
        try:
            while len(self._record.read(kind, "tune")) < self._given.tunes and not is_over(self._given, TUNE_S):
                tune = self._tune_once(kind)
                self._record.add(kind, tune.row)
                self._house.step(kind, self._step(kind) + SETTLED_STEPS[kind], limit_s=240)
                print_tune(kind, tune)
                if tune.gain < self._given.least:
                    raise SystemExit(f"{kind}: a tune gained less than {self._given.least}x")
            self._search(kind)
        finally:
            self._house.client.post(f"/v1/jobs/{kind}/stop")

    def _tune_once(self, kind: str) -> Tuned:
        """Tune, and undo what was adopted."""
        first, began_s = self._step(kind), time.perf_counter()
        self._run_command("tune", kind, "--for", self._given.span, "--steps", self._given.steps, "--may", "precision")
        steps, took_s = self._step(kind) - first, time.perf_counter() - began_s
        report = self._house.client.get(f"/v1/jobs/{kind}/tune")
        say(f"{kind}: {steps} steps, {took_s:.0f} s")
        self._keep(kind)
        self._run_command("tune", kind, "--undo")
        return Tuned(report=report, steps=steps, took_s=took_s)

    def _run_command(self, *words: str) -> None:
        """Run supervisorctl with its output where ours goes."""
        command = [str(self._house.bin / "rocm-supervisorctl"), "--config", str(self._house.config), *words]
        subprocess.run(command, check=False, stderr=subprocess.STDOUT)

    def _keep(self, kind: str) -> None:
        if self._given.keep is None:
            return
        folder = self._house.state / "jobs" / kind / str(self._house.job(kind)["attempt"])
        self._given.keep.mkdir(parents=True, exist_ok=True)
        for name in (fo.RECORDER, fo.AGENT):
            shutil.copy(folder / name, self._given.keep / f"{kind}-{name.replace('/', '-')}")

    def _step(self, kind: str) -> int:
        return int(self._house.job(kind)["step"] or 0)

    def _search(self, kind: str) -> None:
        folder = self._house.state / "jobs" / kind / str(self._house.job(kind)["attempt"])
        eyes = Tune(SystemClock(), kind, folder, types.TuneBody(), lambda: None)
        try:
            facts = eyes._read_facts()
            eyes._switches = Switches(facts=facts)
            known = {_key(row["grid"]) for row in self._record.read(kind, "grid")}
            grid = list(list_grid(kind, facts, card=self._given.device == "cuda"))
            if self._given.chosen and AXES[kind] is CONVOLVING:
                grid = [row for row in grid if is_chosen(row)]
            for settings in grid:
                if _key(settings) in known:
                    continue
                if is_over(self._given):
                    return
                rate = measure(eyes, settings, facts)
                self._record.add(kind, {"grid": settings, "rate": rate})
                known.add(_key(settings))
                if rate is not None:
                    say(f"  grid {len(known)}/{len(grid)} {rate:10.1f}/s  {json.dumps(settings)}")
            self._measure_again(kind, eyes, facts)
        except Ended as error:
            raise RuntimeError(f"{error}\n{self._house.read_output()}") from None
        finally:
            tuned.withdraw_order(folder)

    def _measure_again(self, kind: str, eyes: Tune, facts: Facts) -> None:
        """Measure the best ones and those that were adopted in rounds; each round is kept when it is whole."""
        for number in range(len(self._record.read(kind, "again")), self._given.rounds):
            if is_over(self._given):
                return
            rows = list_rivals(self._record, kind)
            made: list[tuple[Settings, float | None]] = []
            for settings in rows if number % 2 == 0 else reversed(rows):
                rate = measure(eyes, settings, facts, again=True)
                say(f"  round {number + 1}: {rate or 0.0:8.1f}/s  {json.dumps(settings)}")
                made.append((settings, rate))
            self._record.add(kind, {"again": made})


def is_over(given: argparse.Namespace, takes_s: float = 0.0) -> bool:
    """Whether nothing more is to be begun that takes so long."""
    return time.perf_counter() - BEGAN_S + takes_s > float(given.until_s)


def list_again(record: Record, kind: str) -> list[Settings]:
    """Return the settings that are measured in rounds: the best of the grid, and what each tune adopted.

    Those with equally many workers follow one another: as every second round has the opposite order, the workers are
    exchanged once a round.
    """
    rates = [row for row in record.read(kind, "grid") if row["rate"] is not None]
    best = [row["grid"] for row in sorted(rates, key=lambda row: float(row["rate"]), reverse=True)[:BEST]]
    adopted = [tune.adopted for tune in record.read_tunes(kind)]  # nothing adopted: the owner's own
    rows = {_key(settings): settings for settings in (*best, *adopted)}.values()
    return sorted(rows, key=lambda settings: str(settings.get("workers")))


def list_rates(record: Record, kind: str) -> list[tuple[tuple[float, ...], Settings]]:
    """Return the settings that were measured in rounds with their rates, a rate for each round that they were in."""
    rounds = [{_key(settings): rate for settings, rate in row["again"]} for row in record.read(kind, "again")]
    rows = [
        (tuple(found[_key(settings)] for found in rounds if found.get(_key(settings)) is not None), settings)
        for settings in list_again(record, kind)
    ]
    return [(made, settings) for made, settings in rows if made]


def list_rivals(record: Record, kind: str) -> list[Settings]:
    """Return the settings of the next round: all, then what was adopted and the RIVALS best others."""
    rows = list_again(record, kind)
    if len(record.read(kind, "again")) < EARLY_ROUNDS:
        return rows
    adopted = {_key(tune.adopted) for tune in record.read_tunes(kind)}
    rates = {_key(settings): median(made[:EARLY_ROUNDS]) for made, settings in list_rates(record, kind)}
    others = sorted(rates.keys() - adopted, key=lambda key: rates[key], reverse=True)
    return [settings for settings in rows if _key(settings) in adopted | set(others[:RIVALS])]


def is_chosen(settings: Settings) -> bool:
    """Whether a combination is one of those that `--chosen` measures."""
    held = {knob for row in CONVOLVING for knob in row if knob in settings}
    return any(held == set(chosen) for chosen in CHOSEN)


def _key(settings: Settings) -> str:
    return json.dumps(settings, sort_keys=True)


def list_grid(kind: str, facts: Facts, *, card: bool) -> Iterator[Settings]:
    """Yield every combination of the axes; without a GPU the owner's own loader is one of those that are tried."""
    most = min(16, facts.processors or 1)
    counts = [] if kind == "decoder" else [count for count in (most, 2 * most) if count > (facts.workers or 0)]
    loaders: list[dict[str, object]] = [{"workers": count} for count in counts]
    axes = AXES[kind] if card else CPU_AXES
    for workers in loaders if card and loaders else [{}, *loaders]:  # each change of them costs many steps
        for chosen in itertools.product((True, False), repeat=len(axes)):
            row = {
                knob: value for axis, is_set in zip(axes, chosen, strict=True) if is_set for knob, value in axis.items()
            }
            yield {**workers, **(FIXED[kind] if card else {}), **row}


def measure(eyes: Tune, settings: Settings, facts: Facts, *, again: bool = False) -> float | None:
    """Return samples a second under some settings, None where the agent refuses one of them."""
    changes = settings != eyes._held
    switched = count_switch_steps(eyes._held, settings, facts)
    workers = settings.get("workers", facts.workers or 0)
    workers = workers if isinstance(workers, int) else 0
    # While an order is carried out batches are drawn ahead, and the next steps wait for none.
    ahead = (facts.prefetch or PREFETCH) * workers if changes else 0
    answer = eyes._order(settings) if changes else {}
    if answer.get("refused"):
        say(f"  refused: {answer['refused']}")
        eyes._held = {}
        eyes._order({})
        return None
    steps, least, block_s = (
        (AGAIN_STEPS, AGAIN_STEPS_MIN, AGAIN_BLOCK_S) if again else (GRID_STEPS, GRID_STEPS_MIN, GRID_BLOCK_S)
    )
    enough = eyes._collect(
        GRID_DROPPED + switched if changes else 0,
        lambda spans: len(spans) >= steps or (len(spans) >= least and sum(spans) >= block_s),
        workers,
        ahead,
        GRID_COLD if switched else 0,
    )
    enough = eyes._collect_counted(enough, settings)
    # Steps of a busy machine are uneven: their median is no pace. Nor is what lives on batches drawn ahead.
    return len(enough.times) / sum(enough.times) / eyes._switches.find_slowdown(settings, enough.pace_s)


def say(text: str) -> None:
    """Print at once, with the time since the beginning."""
    print(f"[{time.perf_counter() - BEGAN_S:6.1f} s] {text}", flush=True)


BEGAN_S = time.perf_counter()


MUST = {
    "resnet": (">= 3x", "<= 800", ">= 98 %"),
    "decoder": (">= 8x or the grid", "<= 1,000", ">= 97 %"),
    "yolo": ("-", "<= 800", ">= 95 %"),
    "yolo_defaults": ("-", "<= 800", ">= 95 %"),
}


def print_tune(kind: str, tune: Tuned) -> None:
    """Print the figures of one tune with what they must be."""
    rates = tune.report["samples_per_s"]
    before, after = rates["before"], rates["after"]
    gain = f"{before:.0f} -> {after:.0f} ({after / before:.2f}x)" if before and after else "nothing adopted"
    print(f"\n{kind:28}{'measured':>24}{'must be':>18}")
    print(f"{'samples/s':28}{gain:>24}{MUST[kind][0]:>18}")
    print(f"{'steps of the tune':28}{tune.steps:>24}{MUST[kind][1]:>18}")
    print(f"{'seconds of the tune':28}{tune.took_s:>24.0f}", flush=True)


def print_grid(kind: str, record: Record) -> int:
    """Print what share of the grid's best each tune has reached; return how many combinations were measured."""
    rates = [row["rate"] for row in record.read(kind, "grid") if row["rate"] is not None]
    print(f"combinations measured: {len(rates)}, refused: {len(record.read(kind, 'grid')) - len(rates)}", flush=True)
    measured = list_rates(record, kind)
    for made, settings in measured:
        print(f"  {median(made):10.1f}/s ({', '.join(f'{rate:.1f}' for rate in made)})  {json.dumps(settings)}")
    rounds = len(record.read(kind, "again"))
    rows = [(made, settings) for made, settings in measured if len(made) == rounds]
    if not rows:
        return len(rates)
    for tune in record.read_tunes(kind):
        own = next((made for made, settings in rows if _key(settings) == _key(tune.adopted)), ())
        shares = list_shares(own, [made for made, _ in rows])
        share = f"{median(shares):.1%} ({min(shares):.1%}-{max(shares):.1%})" if shares else "not measured"
        print(f"{'share of the grid':28}{share:>24}{MUST[kind][2]:>18}")
    best_rates, best = max(rows, key=lambda row: median(row[0]))
    print(f"best of {len(rates)} in {rounds} rounds: {median(best_rates):.0f}/s with {json.dumps(best)}", flush=True)
    return len(rates)


def list_shares(own: Sequence[float], rows: Sequence[Sequence[float]]) -> list[float]:
    """Return what share of the best one was reached in each round, the best being that of all other rounds."""
    shares = []
    for number, rate in enumerate(own):
        others = [([*row[:number], *row[number + 1 :]] or row, row[number]) for row in rows]
        shares.append(rate / max(others, key=lambda pair: median(pair[0]))[1])
    return shares


def main() -> None:
    """Tune, search the grid, print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--train-python", default=sys.executable)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cuda")
    parser.add_argument("--size", choices=["full", "tiny"], default="full")
    parser.add_argument("--only", nargs="+", choices=KINDS, default=KINDS)
    parser.add_argument("--tunes", type=int, default=1, help="tunes of each training, one after the other")
    parser.add_argument("--for", dest="span", default="150s", help="time of a tune, as its command takes it")
    parser.add_argument("--steps", default="800", help="steps of a tune, as its command takes them")
    parser.add_argument("--until-s", type=float, default=3600.0, help="no tune, combination or round is begun after it")
    parser.add_argument("--least", type=float, default=0.0, help="ends after a tune that gained less than this factor")
    parser.add_argument("--record", type=Path, help="what was measured, a line each; another run goes on from it")
    parser.add_argument("--chosen", action="store_true", help="measure ten combinations of each net that convolves")
    parser.add_argument("--rounds", type=int, default=AGAIN, help="rounds of the best ones and those adopted")
    parser.add_argument("--keep", type=Path, help="folder for the flight recorder and the agent's reports of a tune")
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    record = Record(given.record)
    unmeasured: list[str] = []
    with tempfile.TemporaryDirectory(prefix="tuner-") as place, house(Path(place)) as item:
        item.bin = Path(os.environ.get("SUPERVISOR_BIN", item.bin))
        item.write("\n".join(describe_job(item, kind, given) for kind in given.only))
        item.start()
        for kind in given.only:
            Bench(item, given, record).tune(kind)
            unmeasured += [] if print_grid(kind, record) else [kind]
    if unmeasured:
        raise SystemExit(f"{', '.join(unmeasured)}: no combination of the grid was measured, there is no share of it")


def describe_job(item: House, kind: str, given: argparse.Namespace) -> str:
    """Return the table of a job."""
    words = [given.train_python, str(SCRIPT), kind, given.device, given.size, str(item.folder / kind)]
    env = 'env = { OMP_NUM_THREADS = "1" }\n' if given.device == "cpu" else ""
    table = env + 'autostart = false\nconv2d = "off"\nsnapshot_every_s = 0\nkill_wait_s = 30\n'
    return item.job_of(kind, words, table)


if __name__ == "__main__":
    main()
