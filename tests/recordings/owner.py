"""Builds the nights of the RX 5600 XT's owner as recordings, from the facts of November 2025.

Source: github hkevin01/robust-thermal-image-object-detection, docs/ of 9-18 November 2025: figures and dates are its,
the seconds between them are made up evenly. `python tests/recordings/owner.py` writes the folders beside this file;
each has an `expected.toml` with the flags that a replay must give, kept by hand.
"""

from __future__ import annotations

import math
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parents[1])]

from supervisor.core import events as ev  # noqa: E402 (after the path is set)
from supervisor.core.findings import FaultClass, OutputFinding  # noqa: E402
from supervisor.core.moments import Moment  # noqa: E402
from supervisor.core.readings import ExitStatus, GpuReading, HostReading, ProcessReading, Stage, StepRecord  # noqa: E402
from supervisor.replay.folder import write  # noqa: E402
from supervisor.replay.recording import Recording  # noqa: E402

CARD = "0000:0a:00.0"
VRAM_BYTES = 6144 << 20
BATCHES = 41_163
TRAINER: dict[str, object] = {
    "framework": "ultralytics",
    "adjusts": ["batch_factor", "image_factor", "skip_batches"],
    "saves_each_epoch": True,
}
RATE = 2.4
"""Batches a second at batch 8, as trained; the layer benchmark had promised 18."""
MISSING_DATABASE = "MIOpen(HIP): Warning [SQLiteBase] Missing system database file: gfx1030_18.kdb"


class Night:
    """An attempt in the making; its clock stands at the last thing that happened."""

    def __init__(self, day: int, what: str, first_step: int = 0) -> None:
        self.began = Moment(10_000.0, 1_762_646_400.0 + (day - 9) * 86_400.0)
        self.now_s = 0.0
        self.step = first_step
        self.what = what
        self.facts: list[ev.Event] = []
        self.steps: list[StepRecord] = []
        self.used_bytes = int(4.2e9)
        self._says(ev.AgentEvent.ALIVE, {})
        self.enters(Stage.SETUP)

    @property
    def now(self) -> Moment:
        return self.began.plus(self.now_s)

    def enters(self, stage: Stage) -> Night:
        self.facts.append(ev.StageEntered(at=self.now, job="yolo", attempt=1, stage=stage, stages_complete=True))
        return self

    def plans(self) -> Night:
        facts = {**TRAINER, "epochs": 50, "batches_per_epoch": BATCHES, "device": "cuda:0", "batch": 8}
        return self._says(ev.AgentEvent.PLAN, dict(facts))

    def passes(self, seconds: float, busy: float, cpu: float = 100.0) -> Night:
        """Let time pass with the sensors read each five seconds."""
        until = self.now_s + seconds
        while self.now_s + 5 <= until:
            self.now_s += 5
            self._reads(busy, cpu)
        self.now_s = until
        return self

    def trains(self, batches: int, nan_at: frozenset[int] = frozenset()) -> Night:
        """Make batches; `nan_at` counts from the first of them."""
        read_at = self.now_s
        for index in range(1, batches + 1):
            self.now_s += 1 / RATE
            self.step += 1
            loss = (
                math.nan if index in nan_at else 3.0 - 0.5 * math.sin(self.step / 700) + 0.2 * math.sin(self.step * 2.3)
            )
            record = StepRecord(at=self.now, step=self.step, epoch=(self.step - 1) // BATCHES, loss=loss, lr=0.01)
            self.steps.append(record)
            if self.now_s - read_at >= 30:
                read_at = self.now_s
                self._reads(96.0, 180.0)
        return self

    def prints(self, line: str, fault: FaultClass | None = None) -> Night:
        found = () if fault is None else (OutputFinding(at=self.now, fault=fault, line=line),)
        seen = ev.OutputSeen(at=self.now, job="yolo", attempt=1, new_bytes=len(line), last_line=line, findings=found)
        self.facts.append(seen)
        return self

    def is_killed(self) -> Recording:
        status = ExitStatus(at=self.now, signal=9)
        self.facts.append(ev.Exited(at=self.now, job="yolo", attempt=1, status=status))
        return self.done()

    def done(self) -> Recording:
        return Recording(
            job="yolo",
            attempt=1,
            launched_at=self.began,
            gpus_used=(CARD,),
            made_of=self.what,
            facts=tuple(sorted(self.facts, key=lambda item: item.at.monotonic_s)),
            steps=tuple(self.steps),
        )

    def _says(self, agent_event: ev.AgentEvent, facts: dict[str, object]) -> Night:
        self.facts.append(ev.AgentReported(at=self.now, job="yolo", attempt=1, agent_event=agent_event, facts=facts))
        return self

    def _reads(self, busy: float, cpu: float) -> None:
        warm = 78.0 + 8 * (busy / 100)
        card = GpuReading(
            at=self.now, gpu=CARD, source="sysfs", name="Radeon RX 5600 XT", gfx_version="gfx1010",
            gpu_busy_percent=busy, vram_used_bytes=self.used_bytes, vram_total_bytes=VRAM_BYTES, edge_c=warm - 9,
            junction_c=warm, power_w=21.0 + 79.0 * busy / 100, power_cap_w=160.0, runtime_status="active",
        )  # fmt: skip
        host = HostReading(at=self.now, memory_total_bytes=31 << 30, memory_available_bytes=18 << 30, load_1m=4.0)
        tree = ProcessReading(at=self.now, processes=5, rss_bytes=6 << 30, cpu_percent=cpu)
        self.facts += [
            ev.GpusRead(at=self.now, readings=(card,)),
            ev.HostRead(at=self.now, reading=host),
            ev.ProcessesRead(at=self.now, job="yolo", attempt=1, reading=tree),
        ]


def started(day: int, what: str, first_step: int = 0) -> Night:
    """Return a night whose training is set up and waits for its first batch."""
    return Night(day, what, first_step).passes(45, 2.0).plans().enters(Stage.WARMUP)


def search_without_end() -> Recording:
    """10 November: 99 % GPU, 100 W, 77-88 C, and no batch in eight minutes."""
    return started(10, "10 November: MIOpen's search, no batch in 8 minutes").passes(480, 99.0).is_killed()


def freeze_under_load() -> Recording:
    """14 November: still at batch 2,574, process at 100 % CPU, card at 99 %."""
    night = started(14, "14 November: freeze at batch 2,574, 100 % CPU, 99 % GPU").passes(60, 99.0).enters(Stage.STEP)
    return night.trains(2574).passes(900, 99.0).is_killed()


def freeze_after_validation() -> Recording:
    """15 November: still at batch 4,886 of epoch 2, soon after validation and checkpoint; found 7.8 hours later."""
    night = started(15, "15 November: freeze at batch 4,886 of epoch 2, found 7.8 h later", BATCHES - 1500)
    night.passes(60, 99.0).enters(Stage.STEP).trains(1500).enters(Stage.VALIDATE).passes(1200, 80.0)
    night.enters(Stage.CHECKPOINT).passes(3, 0.0).enters(Stage.STEP).trains(4886)
    return night.passes(1800, 99.0).is_killed()


def two_isolated_nans() -> Recording:
    """17 November: NaN in batches 15 and 46 of epoch 3, and the training goes on."""
    night = started(17, "17 November: NaN in batches 15 and 46 of epoch 3", 2 * BATCHES).passes(60, 99.0)
    return night.enters(Stage.STEP).trains(4000, frozenset({15, 46})).done()


def systematic_nans() -> Recording:
    """18 November: NaN from batch 32 of epoch 4 on, 73 in 7,550 batches, VRAM from 4.2 to 4.71 GB."""
    night = started(18, "18 November: 73 NaN in 7,550 batches of epoch 4", 3 * BATCHES).passes(60, 99.0)
    night.enters(Stage.STEP).trains(3775, frozenset(32 + 103 * index for index in range(37)))
    night.used_bytes = int(4.71e9)
    return night.trains(3775, frozenset(21 + 103 * index for index in range(36))).is_killed()


def hang_before_the_first_batch() -> Recording:
    """18 November: a resume that hangs after the epoch's header, 100 % CPU; the last line is MIOpen's warning."""
    night = started(18, "18 November: a resume hangs before its first batch, 100 % CPU", 3 * BATCHES)
    return night.prints(MISSING_DATABASE).passes(900, 3.0).is_killed()


NIGHTS: dict[str, Callable[[], Recording]] = {
    "nov-10-search-without-end": search_without_end,
    "nov-14-freeze-under-load": freeze_under_load,
    "nov-15-freeze-after-validation": freeze_after_validation,
    "nov-17-two-isolated-nans": two_isolated_nans,
    "nov-18-systematic-nans": systematic_nans,
    "nov-18-hang-before-the-first-batch": hang_before_the_first_batch,
}


def main() -> None:
    """Write every night anew beside its expectations."""
    for name, night in NIGHTS.items():
        folder, expected = HERE / name, HERE / name / "expected.toml"
        kept = expected.read_text() if expected.exists() else ""
        shutil.rmtree(folder, ignore_errors=True)
        write(night(), folder)
        expected.write_text(kept)


if __name__ == "__main__":
    main()
