"""Every rule, word for word: its gauges and its flag, where it is reached, one step short, and where it is blind."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest

from supervisor.core import attempt_files as fo
from supervisor.core import events as ev
from supervisor.core.checkpoints.checkpoint import Checkpoint, Fingerprint, Verdict
from supervisor.core.checkpoints.loss_curve import Resumed, curve_of
from supervisor.core.findings import LAST_BOOT, FaultClass
from supervisor.core.flags import RedFlag
from supervisor.core.readings import HostReading, KernelWait, ProcessReading, Stage, StepRecord, StorageWait
from supervisor.core.rules import RULES, act_of, cause_of, flag_of

from .long_stories import LongStory, long_story, trained
from .stories import GB, GPU, JOB, NAN, OTHER_GPU, START
from .transcripts import read, show_diagnosis, show_flag, show_gauge

MAKE = {rule.name: rule for rule in RULES}


@dataclass(frozen=True)
class Scene:
    """A story, and the settings of the rule that reads it."""

    rule: str
    title: str
    tell: Callable[[], LongStory]
    settings: tuple[tuple[str, Any], ...] = ()

    def play(self, known: dict[str, int]) -> tuple[str, RedFlag | None]:
        """Return the scene as text and the flag at its end; sentences that are known are named by their numbers."""
        rule, history = MAKE[self.rule](**dict(self.settings)), self.tell().history
        settings = "".join(f", {name} = {value}" for name, value in self.settings)
        asked = "" if rule.may_flag(history) else " (nothing near: not asked)"
        lines = [f"{self.rule}: {self.title}{settings}{asked}", *map(show_gauge, rule.measure(history))]
        flag = flag_of(rule, history)
        if flag is not None:
            lines += show_flag(flag, None if act_of(rule) is None else cause_of(flag))
            sentences = list(show_diagnosis(flag.diagnosis))
            lines += [line for line in sentences if line not in known]
            numbers = [known.setdefault(line, len(known) + 1) for line in sentences]
            lines.append(f"    sentences {' '.join(map(str, numbers)) or 'none'}")
        return "\n".join(lines) + "\n", flag


def scene(rule: str, title: str, tell: Callable[[], Any], **settings: Any) -> Scene:
    """Write a scene in one line."""
    return Scene(rule, title, tell, tuple(settings.items()))


def beside_peers(seconds: float) -> LongStory:
    """Another node waits for its storage, as its leader reports every four seconds."""
    timeline = followed().tree(1)
    for _ in range(round(seconds / 4)):
        timeline.silence(4).peers_wait("n1")
    return timeline


def followed(steps: int = 100) -> LongStory:
    """A training that reports each of its stages."""
    timeline = trained(steps)
    timeline.stage(Stage.STEP, stages_complete=True)
    return timeline.step(steps + 1)


def two_cards() -> LongStory:
    """A job on two GPUs, both read five times."""
    timeline = long_story((GPU, OTHER_GPU)).training()
    return timeline.gpu(5, busy=9.0).gpu(5, busy=9.0, gpu=OTHER_GPU)


def host(timeline: LongStory, **fields: Any) -> LongStory:
    """The machine is read once."""
    timeline.put(ev.HostRead(at=timeline.now, reading=HostReading(at=timeline.now, **fields)))
    return timeline


def epochs(*means: float, fitness: tuple[float, ...] = ()) -> LongStory:
    """One epoch of ten steps for each mean loss, and the beginning of a further one."""
    timeline = long_story()
    timeline.started()
    for number, mean in enumerate((*means, means[-1])):
        timeline.steps(10 * number + 1, 10 * number + 10, loss=mean, batches=10)
        if number < len(fitness):
            timeline.epoch_ends(number, fitness=fitness[number])
    return timeline


def retrying(*retries: int, **fields: Any) -> LongStory:
    """The allocator reports these counts of retries, two seconds apart."""
    timeline = trained(20)
    for count in retries:
        timeline.silence(2)
        timeline.allocator(15 * GB, **{"reserved": 23 * GB, "retries": count, "ooms": count // 5, **fields})
    return timeline


def loading() -> LongStory:
    """A training with two loader workers."""
    timeline = trained().rank_says(ev.AgentEvent.WORKERS, loader=1, pids=[51, 52], training=True, iterable=False)
    return timeline.alive(5, 1, 4242, 51, 52).silence(1)


def trainers() -> LongStory:
    """A training of two processes that step each by itself."""
    timeline = trained().rank_says(ev.AgentEvent.CLAIMED).rank_says(ev.AgentEvent.TRAINS, pid=52)
    return timeline.alive(5, 1, 4242, 52).silence(1)


def two_programs(*, interpreter: bool = False) -> LongStory:
    """A shell, or an interpreter, that has started two programs which train."""
    timeline = trained().rank_says(ev.AgentEvent.CLAIMED).rank_says(ev.AgentEvent.TRAINS, pid=52)
    if interpreter:
        timeline.rank_says(ev.AgentEvent.ALIVE, pid=1)
    reading = ProcessReading(at=timeline.now, processes=3, pids=(1, 4242, 52), parents=((4242, 1), (52, 1)))
    timeline.put(ev.ProcessesRead(at=timeline.now, job=JOB, attempt=timeline.attempt, reading=reading))
    return timeline


def ranks() -> LongStory:
    """A training of two ranks, both listed."""
    timeline = trained()
    for rank in (0, 1):
        timeline.rank_says(ev.AgentEvent.CLAIMED, rank=rank, pid=4242 + rank)
    return timeline.alive(3, 4242, 4243).silence(1)


def waiting_ranks(mine: float, other: float) -> LongStory:
    """Two ranks step side by side and wait for their data."""
    timeline = long_story()
    for _ in range(200):
        timeline.pace(1.0, wait_s=mine)
        timeline.now = timeline.now.plus(-1.0)
        timeline.pace(1.0, wait_s=other, rank=1)
    return timeline


def resumed_at(step: int, *, known: bool = True) -> LongStory:
    """An attempt that was resumed at this step, where losses were 1.0 to 1.1."""
    timeline = long_story()
    old = curve_of([1.0 + 0.01 * (number % 11) for number in range(64)])
    timeline.history.resumed = Resumed(step=step, curve=old if known else None)
    timeline.started()
    return timeline


def resumed(loss: float) -> LongStory:
    """An attempt that was resumed at step 400 and made forty steps."""
    timeline = resumed_at(400)
    for step in range(401, 441):
        timeline.steps(step, step, loss=loss + 0.01 * (step % 11))
    return timeline


def spiked(*losses: float) -> LongStory:
    """Losses of 1.0 to 1.1 for six hundred steps, and then these."""
    timeline = long_story()
    timeline.started()
    for step in range(1, 601):
        timeline.steps(step, step, loss=1.0 + 0.01 * (step % 11))
    for step, loss in enumerate(losses, 601):
        timeline.steps(step, step, loss=loss)
    return timeline


def starved(workers: int | None, **host_fields: Any) -> LongStory:
    """Half of the time goes into waiting for data, at a GPU of 10 %."""
    timeline = long_story()
    if workers is not None:
        timeline.rank_says(ev.AgentEvent.WORKERS, loader=1, pids=list(range(51, 51 + workers)), training=True)
    timeline.pace(400, wait_s=0.6)
    timeline.card(3, gpu_busy_percent=10.0)
    return host(timeline, **host_fields) if host_fields else timeline


def planned() -> LongStory:
    """A quarter of an hour of a plan of ten epochs of a thousand batches."""
    return planned_and(900)


def slowed(**fields: Any) -> LongStory:
    """Twenty minutes at one step a second, then six at half of it."""
    timeline = long_story().pace(1200, every_s=1.0, wait_s=0.1).pace(360, every_s=2.0, wait_s=fields.pop("wait_s", 0.2))
    if fields:
        timeline.card(throttled_by=fields.pop("throttled_by", None))
        host(timeline, **fields)
    return timeline


def usual_saves() -> LongStory:
    """A checkpoint is reported each hundred steps, three times, at a pace that changes."""
    timeline = long_story()
    timeline.started()
    for number, every_s in enumerate((0.5, 1.0, 0.25)):
        timeline.steps(100 * number + 1, 100 * number + 100, every_s)
        timeline.says(ev.AgentEvent.CHECKPOINT_SAVED, path="/last.pt", step=100 * number + 100)
    return timeline


def by_clock() -> LongStory:
    """A checkpoint is reported each 60 s, after ever more steps, and then none for long."""
    timeline = long_story()
    timeline.started()
    first = 1
    for steps in (60, 120, 240, 60):
        timeline.steps(first, first + steps - 1, 60.0 / steps)
        first += steps
        timeline.says(ev.AgentEvent.CHECKPOINT_SAVED, path="/last.pt", step=first - 1)
    return timeline.steps(first, first + 132)


def learnt(*, complete: bool = True) -> LongStory:
    """A minute at eighteen steps a second, which is enough to learn what is usual."""
    timeline = trained()
    return timeline.stage(Stage.STEP, stages_complete=complete).steps(101, 1300, 1 / 18)


def resting(timeline: LongStory, seconds: float) -> LongStory:
    """Neither a process nor the GPU does anything for so long."""
    timeline.gpu(busy=0.0)
    for _ in range(round(seconds)):
        timeline.tree(1, cpu=0.0, switches=0.1).gpu(busy=0.0)
    return timeline


def unused() -> LongStory:
    """A job without a GPU."""
    return long_story(()).started()


def died_of(**facts: object) -> LongStory:
    """A training that ends with an exception of which the agent knows this."""
    timeline = trained()
    timeline.says(ev.AgentEvent.EXCEPTION, **facts)
    return timeline.exits(1)


def raised(timeline: LongStory) -> LongStory:
    """The training raises what ends it."""
    return timeline.rank_says(ev.AgentEvent.EXCEPTION, type="RuntimeError", message="no")


def bar() -> LongStory:
    """A training whose progress bar alone is seen; it stands at 50."""
    timeline = long_story()
    timeline.started()
    for step in range(1, 51):
        timeline.silence(1)
        seen = ev.OutputSeen(
            at=timeline.now, job=JOB, attempt=1, new_bytes=9, last_line=f"{step}/100", progress_step=step
        )
        timeline.put(seen)
    return timeline


def begun() -> LongStory:
    """A training that was set up, and whose first batch is due."""
    return long_story().started().stage(Stage.SETUP).silence(20).stage(Stage.WARMUP, stages_complete=True)


def others(gpus_used: tuple[str, ...]) -> LongStory:
    """A training on these GPUs, of which two others are read."""
    timeline = long_story(gpus_used)
    timeline.training().stage(Stage.STEP, stages_complete=True).step(101)
    return timeline.gpu(5, busy=99.0).gpu(5, busy=99.0, gpu=OTHER_GPU)


def both_idle(*, cpu: float) -> LongStory:
    """It waits for data for half a minute."""
    timeline = followed().stage(Stage.DATA_WAIT)
    for _ in range(30):
        timeline.tree(1, cpu=cpu).gpu(busy=0.0)
    return timeline


def apart() -> LongStory:
    """Two losses that are no numbers, and one between that is."""
    return trained().steps(101, 101, loss=NAN).steps(102, 102).steps(103, 103, loss=NAN)


def skipped() -> LongStory:
    """Three losses that are no numbers, whose steps a gradient scaler skipped."""
    timeline = trained()
    for step in (101, 111, 121):
        record = StepRecord(at=timeline.now, step=step, loss=NAN, skipped=True)
        timeline.put(ev.StepsMade(at=timeline.now, job=JOB, attempt=1, records=(record,)))
        timeline.silence(1)
    return timeline


def looping(seconds: float, *, every_s: float | None = None) -> LongStory:
    """A compiled loop whose steps are not seen, after calls that took so long each, while nothing of the job runs."""
    timeline = followed()
    for step in range(102, 112) if every_s is not None else ():
        timeline.stage(Stage.LOOP).silence(every_s or 0.0).step(step)
    return resting(timeline.stage(Stage.LOOP, stages_complete=True), seconds)


def of_the_last_boot() -> LongStory:
    """The machine was rebooted, and the boot before ended with a fault."""
    timeline = trained().kernel(FaultClass.THERMAL, "mce: temperature above threshold", fatal=False)
    timeline.kernel(FaultClass.GPU_RESET, "amdgpu: GPU reset failed")
    findings = timeline.history.kernel.findings
    findings.extend([replace(findings.popleft(), origin=LAST_BOOT) for _ in range(2)])
    return timeline.lost()


def falling() -> LongStory:
    """Memory falls below its limit, and on."""
    timeline = trained().memory(10, available=950_000_000, rss=8 * GB)
    return timeline.memory(available=500_000_000, rss=9 * GB)


def unreadable(timeline: LongStory, part: str) -> LongStory:
    """A file of the attempt cannot be read any more."""
    place, error = ev.reading_place(part), "OSError: [Errno 5] Input/output error"
    timeline.put(ev.SupervisionChanged(at=timeline.now, job=JOB, attempt=1, place=place, error=error))
    return timeline


def closed(*places: str) -> LongStory:
    """Folders of checkpoints may not be read."""
    timeline = trained()
    timeline.put(ev.CheckpointsClosed(at=timeline.now, job=JOB, attempt=1, closed=places))
    return timeline


def existing(kept: int = 0, left_out: tuple[str, ...] = ()) -> LongStory:
    """Checkpoints of nobody knows whom lay there at the start."""
    timeline = trained()
    found = ev.ExistingFound(
        at=timeline.now, job=JOB, attempt=1, count=3, kept=kept, folder="/state/existing", left_out=left_out
    )
    timeline.put(found)
    return timeline


def asked_in_vain() -> LongStory:
    """The save that was asked for failed."""
    timeline = trained()
    return timeline.says(ev.AgentEvent.SAVE_FAILED, kind="asked", error="cannot pickle")


def not_kept() -> LongStory:
    """A checkpoint could not be copied."""
    timeline = trained()
    timeline.put(ev.CheckpointNotKept(at=timeline.now, job=JOB, attempt=1, path="/w/last.pt", reason="12 MB free"))
    return timeline


def recurring() -> LongStory:
    """A hang that the driver ended, and that came back."""
    timeline = trained()
    for number, fatal in enumerate((True, False, True)):
        timeline.findings = 1
        timeline.kernel(FaultClass.GPU_HANG, f"amdgpu: hang {number}", fatal=fatal).silence(10)
    return timeline


def worn(gpu: str, **errors: int) -> LongStory:
    """A GPU with one memory error at the launch has more of them."""
    timeline = trained().card(5, gpu=gpu, **dict.fromkeys(errors, 1))
    return timeline.card(gpu=gpu, **errors)


def behind(seconds: float) -> LongStory:
    """The second rank makes no step for so long, the first goes on."""
    timeline = long_story()
    timeline.started()
    for step in range(1, 21):
        timeline.silence(1).step(step)
        timeline.step(step, rank=1)
    return timeline.pace(seconds)


def precise(asked: str, used: str, **more: Any) -> LongStory:
    """The agent reports a precision."""
    return trained().rank_says(ev.AgentEvent.PRECISION, asked=asked, used=used, **more)


def planned_from(epoch: int) -> LongStory:
    """The plan of a training that goes on with this epoch."""
    timeline = long_story()
    timeline.started().says(ev.AgentEvent.PLAN, epochs=10, batches_per_epoch=1000, start_epoch=epoch)
    return timeline.pace(900, batches=1000)


def planned_and(steps: int, *, epochs: int = 10) -> LongStory:
    """So many steps of a plan of epochs of a thousand batches."""
    timeline = long_story()
    timeline.started().says(ev.AgentEvent.PLAN, epochs=epochs, batches_per_epoch=1000)
    return timeline.pace(steps, batches=1000)


def snapshots(*, failed: bool) -> LongStory:
    """Snapshots every 60 s, of which the first was saved."""
    timeline = long_story()
    timeline.started().says(ev.AgentEvent.SNAPSHOTS, every_s=60.0)
    timeline.pace(10)
    timeline.says(ev.AgentEvent.CHECKPOINT_SAVED, kind="snapshot", step=10, path="/s/10")
    if failed:
        timeline.pace(5)
        timeline.says(ev.AgentEvent.SAVE_FAILED, kind="snapshot", error="No space left on device")
    return timeline


def rejected(*reasons: str) -> LongStory:
    """A proven checkpoint, then one rejected for each reason."""
    timeline = trained()
    timeline.seen("/last.pt", Verdict.PROVEN, step=50)
    for number, reason in enumerate(reasons):
        timeline.silence(10).seen("/last.pt", Verdict.REJECTED, reason, step=60 + number)
    return timeline


def changing(**columns: tuple[Any, ...]) -> LongStory:
    """A GPU whose readings, a second apart, have these values one after the other; the first stays for two minutes."""
    timeline = trained()
    for number, row in enumerate(zip(*columns.values(), strict=True)):
        timeline.card(0 if number else 120, **dict(zip(columns, row, strict=True))).silence(1)
    return timeline


def stopping(*pids: tuple[int, ...], timeline: LongStory | None = None) -> LongStory:
    """Nothing of the job runs, and these processes are stopped, in one reading after the other; first for 30 s."""
    timeline = timeline or followed()
    for number, stopped in enumerate(pids):
        timeline.tree(0 if number else 30, cpu=0.0, switches=0.0, stopped=stopped).silence(1)
    return timeline


def unsaved_for(hours: float) -> LongStory:
    """A checkpoint was written before the attempt began, and none since."""
    timeline = trained()
    path = Checkpoint(
        path="/last.pt",
        fingerprint=Fingerprint(size_bytes=1, modified_ns=round((START.unix_s - 60) * 1e9), inode=1),
    )
    timeline.put(ev.CheckpointSeen(at=timeline.now, job=JOB, attempt=1, checkpoint=path))
    return timeline.silence(hours * 3600).steps(101, 101)


Played = tuple[tuple[Scene, str, RedFlag | None], ...]
"""Each scene, its text, and the flag at its end."""
WAITS = (KernelWait(pid=4242, name="python", thread=4242, switches=9, channel="amdgpu_fence_wait"),)
FULLER = {
    "vram_used_bytes": (5_700_000_000, 5_750_000_000, 5_800_000_000),
    "vram_total_bytes": (6 * GB, 6 * GB, 6 * GB),
}
OF_STORAGE = (
    StorageWait(pid=4242, name="python", thread=4242, channel="rpc_wait", place="/data (nfs4 of server:/export)"),
)
SHORT = {"memory_total_bytes": 32 * GB, "memory_stall_percent": 30.0}
NOT_OVER, NOT_OVER_STEPS = "one second short", "one step short"
SCENES = (
    # stall
    scene("stall", "a minute", lambda: trained().silence(60)),
    scene("stall", NOT_OVER, lambda: trained().silence(59)),
    scene("stall", "of a training that reports each stage", lambda: followed().silence(60)),
    scene("stall", "only reported", lambda: trained().silence(60), act=False),
    scene("stall", "in a validation", lambda: trained().stage(Stage.VALIDATE).silence(3600)),
    scene("stall", "in a checkpoint", lambda: trained().stage(Stage.CHECKPOINT).silence(899)),
    scene("stall", "in a compilation", lambda: trained().stage(Stage.COMPILE).silence(600)),
    scene("stall", "in a wait for data", lambda: trained().stage(Stage.DATA_WAIT).silence(180)),
    scene("stall", "ended", lambda: trained().stage(Stage.ENDED).silence(999)),
    scene("stall", "gone", lambda: trained().exits(1).silence(999)),
    scene("stall", "no step yet", lambda: long_story().started().stage(Stage.SETUP).silence(99)),
    scene("stall", "a hook failed", lambda: trained().says(ev.AgentEvent.HOOK_FAILED, where="x").silence(60)),
    scene("stall", "learned", lambda: learnt().silence(8)),
    scene("stall", "learned, not every stage reported", lambda: learnt(complete=False).silence(8)),
    scene("stall", "learned, machine short of memory", lambda: host(learnt().silence(8), **SHORT)),
    scene("stall", "the whole job rests", lambda: resting(followed(), 25)),
    scene("stall", "the whole job rested for less", lambda: resting(followed(), 19)),
    scene("stall", "busy GPU", lambda: followed().gpu(60, busy=99.0, gfx="gfx1010")),
    scene("stall", "stopped", lambda: followed().tree(60, cpu=0.0, stopped=(4242, 4250))),
    scene("stall", "an exception ends it", lambda: raised(learnt()).silence(8)),
    scene("stall", "seen in its output alone", lambda: bar().silence(900)),
    scene("stall", "seen in its output alone, " + NOT_OVER, lambda: bar().silence(899)),
    scene("stall", "seen in its output alone, idle", lambda: bar().tree(901, cpu=0.0, every_s=5.0)),
    scene("stall", "seen in its output alone, for long", lambda: bar().silence(4000)),
    scene("stall", "a compiled loop at rest", lambda: looping(20)),
    scene("stall", "a compiled loop at rest, " + NOT_OVER, lambda: looping(19)),
    scene("stall", "no stage known", lambda: long_story().started().steps(1, 9).silence(60)),
    scene("stall", "a compiled loop that is long", lambda: looping(25, every_s=2.0), rest_limit_s=900.0),
    # storage_wait
    scene("storage_wait", "30 s", lambda: followed().tree(30, stuck=(4242,), storage=OF_STORAGE)),
    scene("storage_wait", NOT_OVER, lambda: followed().tree(29, stuck=(4242,), storage=OF_STORAGE)),
    scene("storage_wait", "for hours", lambda: followed().tree(14400, storage=OF_STORAGE, every_s=20)),
    scene("storage_wait", "only reported", lambda: followed().tree(14400, storage=OF_STORAGE, every_s=20), act=False),
    scene("storage_wait", "answered", lambda: followed().tree(60, storage=OF_STORAGE).tree(1)),
    scene("storage_wait", "gone", lambda: followed().tree(60, storage=OF_STORAGE).exits(1)),
    scene("storage_wait", "on another node", lambda: beside_peers(36)),
    scene("storage_wait", "on another node, a report short", lambda: beside_peers(32)),
    scene("storage_wait", "on another node for hours", lambda: beside_peers(14404)),
    scene("storage_wait", "on another node for hours, left alone", lambda: beside_peers(14404), act=False),
    # start_timeout
    scene("start_timeout", "setup", lambda: long_story().started().stage(Stage.SETUP).silence(1800)),
    scene("start_timeout", "setup, " + NOT_OVER, lambda: long_story().started().stage(Stage.SETUP).silence(1799)),
    scene("start_timeout", "warmup", lambda: long_story().started().prints("loading").stage(Stage.WARMUP).silence(600)),
    scene("start_timeout", "of which nothing is seen", lambda: long_story().started().silence(1800)),
    scene("start_timeout", "begun", trained),
    scene("start_timeout", "ended", lambda: long_story().started().stage(Stage.SETUP).exits(1)),
    scene("start_timeout", "no step due", lambda: long_story().started().stage(Stage.ENDED).silence(9)),
    # busy_without_progress
    scene("busy_without_progress", "45 s", lambda: followed().gpu(45, busy=99.0)),
    scene("busy_without_progress", NOT_OVER, lambda: followed().gpu(44, busy=99.0)),
    scene("busy_without_progress", "not each stage reported", lambda: trained().gpu(45, busy=90.0)),
    scene("busy_without_progress", "less busy", lambda: followed().gpu(60, busy=89.0)),
    scene("busy_without_progress", "few readings", lambda: followed().gpu(60, busy=99.0, every_s=20)),
    scene("busy_without_progress", "at the start", lambda: begun().gpu(120, busy=99.0)),
    scene("busy_without_progress", "MIOpen fails", lambda: begun().gpu(120, busy=99.0, gfx="gfx1010")),
    scene("busy_without_progress", "a compilation", lambda: trained().stage(Stage.COMPILE).gpu(120, busy=99.0)),
    scene("busy_without_progress", "validation", lambda: followed().stage(Stage.VALIDATE).gpu(60, busy=99.0)),
    scene("busy_without_progress", "steps not seen", lambda: long_story().silence(5).gpu(60, busy=99.0)),
    scene("busy_without_progress", "GPUs not named", lambda: others(()).gpu(60, busy=99.0)),
    scene("busy_without_progress", "one GPU is not read", lambda: others((GPU, "0000:0c:00.0")).gpu(60, busy=99.0)),
    scene("busy_without_progress", "no GPU", lambda: followed().silence(60)),
    # gpu_idle
    scene("gpu_idle", "30 s", lambda: followed().gpu(30, busy=0.0)),
    scene("gpu_idle", NOT_OVER, lambda: followed().gpu(29, busy=1.0)),
    scene("gpu_idle", "not each stage reported", lambda: trained().gpu(30, busy=0.0)),
    scene("gpu_idle", "not each stage reported, for long", lambda: trained().gpu(300, busy=0.0)),
    scene("gpu_idle", "machine short of memory", lambda: host(followed().gpu(30, busy=0.0), **SHORT)),
    scene("gpu_idle", "only reported", lambda: followed().gpu(30, busy=0.0), act=False),
    scene("gpu_idle", "few readings", lambda: followed().gpu(30, busy=0.0, every_s=30)),
    scene("gpu_idle", "validation", lambda: followed().stage(Stage.VALIDATE).gpu(30, busy=0.0)),
    scene("gpu_idle", "no GPU", lambda: followed().silence(30)),
    scene("gpu_idle", "no step seen", lambda: long_story().started().silence(5).gpu(30, busy=0.0)),
    scene("gpu_idle", "one GPU is not read", lambda: others((GPU, "0000:0c:00.0")).gpu(60, busy=0.0)),
    scene("gpu_idle", "waits for data, idle", lambda: both_idle(cpu=0.0)),
    scene("gpu_idle", "waits for data, busy", lambda: both_idle(cpu=50.0)),
    scene("gpu_idle", "ended", lambda: followed().gpu(30, busy=0.0).exits(0)),
    # hang
    scene("hang", "30 s", lambda: followed().tree(30, stuck=(4242,), waits=WAITS)),
    scene("hang", NOT_OVER, lambda: followed().tree(29, stuck=(4242,), waits=WAITS)),
    scene("hang", "it ran in between", lambda: followed().tree(30, stuck=(4242,), runs=True)),
    scene("hang", "not counted", lambda: followed().tree(30, stuck=(4242, 4250), runs=None)),
    scene("hang", "not each stage reported", lambda: trained().tree(30, stuck=(4250, 4242))),
    scene("hang", "few readings", lambda: followed().tree(30, stuck=(4242,), every_s=10)),
    scene("hang", "validation", lambda: followed().stage(Stage.VALIDATE).tree(30, stuck=(4242,))),
    scene("hang", "machine short of memory", lambda: host(followed().tree(30, stuck=(4242,)), **SHORT)),
    scene("hang", "no step seen", lambda: long_story().started().tree(30, stuck=(4242,))),
    scene("hang", "not read", lambda: followed().silence(60)),
    scene("hang", "ended", lambda: followed().tree(30, stuck=(4242,)).exits(1)),
    scene("hang", "training ended", lambda: followed().says(ev.AgentEvent.TRAIN_END).tree(30, stuck=(4242,))),
    # stopped_process
    scene("stopped_process", "30 s", lambda: followed().tree(30, cpu=0.0, switches=0.0, stopped=(4250, 4242))),
    scene("stopped_process", NOT_OVER, lambda: followed().tree(29, cpu=0.0, switches=0.0, stopped=(4250, 4242))),
    scene("stopped_process", "busy", lambda: followed().tree(30, cpu=50.0, stopped=(4250,))),
    scene("stopped_process", "one that makes steps", lambda: ranks().tree(30, stopped=(4250, 4243))),
    scene("stopped_process", "only reported", lambda: ranks().tree(30, stopped=(4243,)), act=False),
    scene("stopped_process", "no step seen", lambda: long_story().started().tree(30, stopped=(4242,))),
    scene("stopped_process", "few readings", lambda: ranks().tree(30, stopped=(4243,), every_s=10)),
    scene("stopped_process", "one after another", lambda: stopping((4250,), (4251, 4252), (4253, 4254))),
    scene("stopped_process", "held by a terminal", lambda: followed().tree(30, cpu=0.0, on_terminal=(4250,))),
    scene("stopped_process", "not read", trained),
    scene("stopped_process", "ended", lambda: ranks().tree(30, stopped=(4243,)).exits(1)),
    # lost_process
    scene("lost_process", "10 s", lambda: trainers().steps(101, 101).alive(10, 1, 4242).steps(102, 102)),
    scene("lost_process", NOT_OVER, lambda: trainers().steps(101, 101).alive(9, 1, 4242).steps(102, 102)),
    scene("lost_process", "none gone", lambda: trainers().alive(30, 1, 4242, 52).steps(101, 101)),
    scene("lost_process", "no step", lambda: trainers().alive(30, 1, 4242)),
    scene("lost_process", "one process", lambda: loading().alive(20, 1, 4242)),
    # dead_worker
    scene("dead_worker", "20 s", lambda: loading().alive(20, 1, 4242, 52)),
    scene("dead_worker", NOT_OVER, lambda: loading().alive(19, 1, 4242, 52)),
    scene("dead_worker", "none gone", lambda: loading().alive(30, 1, 4242, 51, 52)),
    scene("dead_worker", "steps go on", lambda: loading().alive(25, 1, 4242, 52).steps(101, 101)),
    scene("dead_worker", "a rank", lambda: ranks().alive(25, 4242)),
    scene("dead_worker", "validation", lambda: loading().stage(Stage.VALIDATE).alive(30, 1, 4242, 52)),
    scene("dead_worker", "not read", lambda: loading().silence(61)),
    scene("dead_worker", "raised", lambda: raised(loading()).alive(30, 1, 4242, 52)),
    scene("dead_worker", "ended", lambda: loading().exits(1)),
    # idle_job
    scene("idle_job", "30 s", lambda: resting(long_story().started(), 30)),
    scene("idle_job", NOT_OVER, lambda: resting(long_story().started(), 29)),
    scene("idle_job", "five minutes", lambda: resting(trained(), 300), act=True),
    scene("idle_job", "stopped", lambda: unused().tree(30, cpu=0.0, switches=0.0, stopped=(4242,))),
    scene("idle_job", "stopped at last", lambda: stopping((), (), (4242,), timeline=unused())),
    scene("idle_job", "continued at last", lambda: stopping((4242,), (4242,), (), timeline=unused())),
    scene("idle_job", "machine short of memory", lambda: host(resting(trained(), 30), **SHORT)),
    scene("idle_job", "not read", lambda: trained().silence(60)),
    scene("idle_job", "ended", lambda: resting(trained(), 30).exits(1)),
    # losses
    scene("non_finite_loss", "none", lambda: trained().steps(101, 110, loss=1.0)),
    scene("non_finite_loss", "two", lambda: trained().steps(101, 102, loss=NAN)),
    scene("non_finite_loss", "two with one between", apart),
    scene("non_finite_loss", "many", lambda: trained().steps(101, 130, loss=NAN)),
    scene("non_finite_loss", "none tolerated", lambda: trained().steps(101, 101, loss=NAN), tolerated=0),
    scene("non_finite_loss", "only reported", lambda: trained().steps(101, 130, loss=NAN), act=False),
    scene("non_finite_loss", "skipped", skipped),
    scene("non_finite_loss", "not reported", lambda: long_story().started().steps(1, 5, loss=None)),
    scene("non_finite_grad", "few", lambda: trained().steps(101, 120, grad_norm=NAN)),
    scene("non_finite_grad", "21", lambda: trained().steps(101, 121, grad_norm=NAN)),
    scene("non_finite_grad", "200 in a row", lambda: trained().steps(101, 300, grad_norm=NAN)),
    scene("non_finite_grad", "199 in a row", lambda: trained().steps(101, 299, grad_norm=NAN)),
    scene("non_finite_grad", "over", lambda: trained().steps(101, 300, grad_norm=NAN).steps(301, 301, grad_norm=1.0)),
    scene("non_finite_grad", "none", lambda: trained().steps(101, 110, grad_norm=1.0)),
    scene("non_finite_grad", "not reported", trained),
    scene("loss_spike", "none", lambda: spiked(1.05)),
    scene("loss_spike", "one", lambda: spiked(9.0, 1.05)),
    scene("loss_spike", "not far", lambda: spiked(2.0)),
    scene("loss_spike", "a little less than the limit", lambda: spiked(3.14)),
    scene("loss_spike", "the limit", lambda: spiked(3.16)),
    scene("loss_spike", "no number", lambda: spiked(NAN)),
    scene("loss_spike", "stays", lambda: spiked(*[9.0] * 201), act=True),
    scene("loss_spike", "stays, " + NOT_OVER_STEPS, lambda: spiked(*[9.0] * 200)),
    scene("loss_spike", "stays, not far", lambda: spiked(*[2.0] * 201)),
    scene("loss_spike", "stays, of ever more deviations", lambda: spiked(*[9.0] * 201), distance_factor=200.0),
    scene("loss_spike", "stays, and falls again", lambda: spiked(*[9.0] * 150, *[1.05] * 60)),
    scene("loss_spike", "no level yet", trained),
    scene("loss_spike", "ended", lambda: spiked(9.0).exits(1)),
    scene("loss_plateau_or_divergence", "rises", lambda: epochs(2.0, 1.0, 3.0, 1.5, 2.5), act=True),
    scene("loss_plateau_or_divergence", "rises less", lambda: epochs(2.0, 1.0, 3.0, 1.49, 2.5)),
    scene("loss_plateau_or_divergence", "no numbers", lambda: epochs(2.0, NAN, NAN, NAN)),
    scene("loss_plateau_or_divergence", "three epochs", lambda: epochs(2.0, 1.0, 3.0)),
    scene("loss_plateau_or_divergence", "first epoch", trained),
    scene("loss_plateau_or_divergence", "flat", lambda: epochs(*[1.0] * 8), patience_epochs=6),
    scene("loss_plateau_or_divergence", "flat for less", lambda: epochs(*[1.0] * 6), patience_epochs=6),
    scene(
        "loss_plateau_or_divergence",
        "no fitter",
        lambda: epochs(*[1.0] * 8, fitness=(0.5, 0.6, 0.6, 0.6, 0.59, 0.6, 0.6, 0.6)),
        patience_epochs=6,
    ),
    scene(
        "loss_plateau_or_divergence",
        "no fitter, losses fall",
        lambda: epochs(*(1 / number for number in range(1, 9)), fitness=(0.6,) * 8),
        patience_epochs=6,
    ),
    scene("loss_plateau_or_divergence", "ended", lambda: epochs(2.0, 1.0, 3.0, 1.5, 2.5).exits(1)),
    scene("resumed_loss", "leaves the old curve", lambda: resumed(3.0)),
    scene("resumed_loss", "continues it", lambda: resumed(1.0)),
    scene("resumed_loss", "continues it for long", lambda: resumed(1.0).steps(441, 521, loss=1.0)),
    scene("resumed_loss", "continues it for long, " + NOT_OVER_STEPS, lambda: resumed(1.0).steps(441, 520, loss=1.0)),
    scene("resumed_loss", "no step yet", lambda: resumed_at(400)),
    scene("resumed_loss", "losses before the resume are not known", lambda: resumed_at(400, known=False)),
    scene("resumed_loss", "half of the losses are there", lambda: resumed_at(400).steps(401, 415, loss=3.0)),
    scene("resumed_loss", "not resumed", trained),
    scene("best_metric", "best", lambda: epochs(1.0, 0.9, fitness=(0.5, 0.506))),
    scene("best_metric", "hardly better", lambda: epochs(1.0, 0.9, fitness=(0.5, 0.505))),
    scene("best_metric", "one epoch", lambda: epochs(1.0, fitness=(0.5,))),
    # memory
    scene("vram_high", "83 %", lambda: trained().gpu(9, used=4_980_000_000)),
    scene("vram_high", "less", lambda: trained().gpu(9, used=4_970_000_000)),
    scene("vram_high", "95 %", lambda: trained().gpu(10, used=5_700_000_000)),
    scene("vram_high", "95 % for 9 s", lambda: trained().gpu(9, used=5_700_000_000)),
    scene("vram_high", "fuller each time", lambda: changing(**FULLER)),
    scene("vram_high", "fuller each time, in bytes", lambda: changing(**FULLER), limit_bytes=4 * GB),
    scene("vram_high", "two GPUs, one not known", lambda: two_cards().gpu(10, used=5 * GB)),
    scene("vram_high", "in bytes", lambda: trained().gpu(10, used=4 * GB), limit_bytes=4 * GB),
    scene("vram_high", "in bytes, total unknown", lambda: trained().gpu(10, used=4 * GB, total=None), limit_bytes=GB),
    scene("vram_high", "GPUs not named", lambda: others(()).gpu(10, used=6 * GB)),
    scene("vram_high", "two GPUs", lambda: two_cards().gpu(10, used=5 * GB, gpu=OTHER_GPU)),
    scene("vram_high", "not in any reading", lambda: trained().gpu(10)),
    scene("vram_high", "no GPU", trained),
    scene("vram_leak", "allocator", lambda: trained().hours(1.5, 2.0, of="allocator"), act=True),
    scene("vram_leak", "GPU", lambda: trained().hours(1.5, 2.0, of="card")),
    scene("vram_leak", "too little", lambda: trained().hours(2, 0.2, of="allocator")),
    scene("vram_leak", "too early", lambda: trained().hours(0.5, 2.0, of="allocator")),
    scene("vram_leak", "level", lambda: trained().hours(1.5, 0.0, of="allocator")),
    scene("vram_leak", "not known", trained),
    scene("vram_leak", "ended", lambda: trained().hours(1.5, 2.0, of="card").exits(1)),
    scene("host_memory_slope", "rises", lambda: trained().hours(1.5, 8.0, of="host"), act=True),
    scene("host_memory_slope", "only reported", lambda: trained().hours(1.5, 8.0, of="host")),
    scene("host_memory_slope", "far", lambda: trained().hours(1.5, 3.0, of="host")),
    scene("host_memory_slope", "level", lambda: trained().hours(1.5, 0.0, of="host")),
    scene("host_memory_slope", "too early", lambda: trained().hours(0.5, 8.0, of="host")),
    scene("host_memory_slope", "not read", trained),
    scene("host_memory_slope", "ended", lambda: trained().hours(1.5, 8.0, of="host").exits(1)),
    scene("host_memory", "10 %", lambda: trained().memory(2, available=3_190_000_000, rss=20 * GB)),
    scene("host_memory", "more", lambda: trained().memory(2, available=3_200_000_000)),
    scene("host_memory", "3 %", lambda: trained().memory(10, available=950_000_000, rss=8 * GB)),
    scene("host_memory", "3 % for 9 s", lambda: trained().memory(9, available=950_000_000, rss=8 * GB)),
    scene("host_memory", "3 %, another's", lambda: trained().memory(10, available=950_000_000, rss=7 * GB)),
    scene("host_memory", "3 %, of whom is not known", lambda: trained().memory(10, available=950_000_000)),
    scene("host_memory", "3 %, falling", falling),
    scene("host_memory", "not read", trained),
    scene("host_memory", "ended", lambda: trained().memory(10, available=GB).exits(1)),
    scene("fragmentation", "retried", lambda: retrying(0, 2, 5, inactive_split_bytes=6 * GB), act=True),
    scene("fragmentation", "retried before as well", lambda: retrying(10, 12, 20)),
    scene("fragmentation", "only reported", lambda: retrying(0, 2, 3)),
    scene("fragmentation", "seldom", lambda: retrying(0, 1, 2)),
    scene("fragmentation", "at once", lambda: retrying(0, 7, 7)),
    scene("fragmentation", "room", lambda: retrying(0, 2, 5, reserved=19_100_000_000)),
    scene("fragmentation", "in use", lambda: retrying(0, 2, 5, allocated_bytes=20 * GB)),
    scene("fragmentation", "long ago", lambda: retrying(0, 2, 5).silence(301)),
    scene("fragmentation", "not reported", trained),
    scene("fragmentation", "ended", lambda: retrying(0, 2, 5).exits(1)),
    # storage
    scene("disk_low", "2 GB", lambda: trained().disks(data=1_999_999_999, other=400 * GB), warn_fraction=0.0),
    scene("disk_low", "2 GB and one byte", lambda: trained().disks(data=2 * GB), warn_fraction=0.0),
    scene("disk_low", "2 %", lambda: trained().disks(data=19_900_000_000)),
    scene("disk_low", "200 MB", lambda: trained().disks(data=199_999_999, other=40 * GB)),
    scene("disk_low", "only reported", lambda: trained().disks(data=1000), act=False),
    scene("disk_low", "fills", lambda: trained().hours(1.0, per_hour=30, of="disk", start=40.0)),
    scene("disk_low", "fills slowly", lambda: trained().hours(1.0, per_hour=10, of="disk", start=40.0)),
    scene("disk_low", "not read", trained),
    scene("disk_low", "ended", lambda: trained().disks(data=1000).exits(1)),
    scene("checkpoint_bad", "one", lambda: rejected("cut")),
    scene("checkpoint_bad", "two, not finite", lambda: rejected("weights are not finite", "cut"), act=True),
    scene("checkpoint_bad", "two, cut", lambda: rejected("cut", "cut"), act=True),
    scene("checkpoint_bad", "one, not finite", lambda: rejected("holds NaN")),
    scene("checkpoint_bad", "none", rejected),
    scene("checkpoint_bad", "none looked at", trained),
    scene("checkpoint_bad", "ended", lambda: rejected("cut").exits(1)),
    scene("checkpoint_overdue", "after 221 steps", lambda: usual_saves().steps(301, 521, 0.5)),
    scene("checkpoint_overdue", "after 220 steps", lambda: usual_saves().steps(301, 520, 0.5)),
    scene("checkpoint_overdue", "by the clock", by_clock),
    scene("checkpoint_overdue", "four hours", lambda: trained().silence(14400).steps(101, 101), act=True),
    scene("checkpoint_overdue", "of an earlier attempt", lambda: unsaved_for(4.5)),
    scene("checkpoint_overdue", "less", lambda: trained().silence(7200).steps(101, 101)),
    scene("checkpoint_overdue", "no step", lambda: long_story().started()),
    scene("checkpoint_overdue", "ended", lambda: usual_saves().steps(301, 600, 0.5).exits(1)),
    scene("checkpoint_unseen", "closed", lambda: closed("/a: Permission denied")),
    scene("checkpoint_unseen", "many closed", lambda: closed(*(f"/{letter}: Permission denied" for letter in "abcde"))),
    scene("checkpoint_unseen", "existing", lambda: existing(kept=2, left_out=("/b: too large", "/c: gone"))),
    scene("checkpoint_unseen", "existing, none kept", existing),
    scene("checkpoint_unseen", "nothing", trained),
    scene("checkpoint_unseen", "ended", lambda: closed("/a: Permission denied").exits(1)),
    scene("snapshot_overdue", "failed, interval over", lambda: snapshots(failed=True).silence(60)),
    scene("snapshot_overdue", "failed", lambda: snapshots(failed=True).silence(50)),
    scene("snapshot_overdue", "silent", lambda: snapshots(failed=False).pace(400)),
    scene("snapshot_overdue", "asked for", asked_in_vain),
    scene("snapshot_overdue", "none taken", trained),
    scene("snapshot_overdue", "no step", lambda: long_story().started().says(ev.AgentEvent.SNAPSHOTS, every_s=60.0)),
    scene("snapshot_overdue", "ended", lambda: snapshots(failed=True).exits(1)),
    scene("generations", "not kept", not_kept),
    scene("generations", "kept", trained),
    # gpus
    scene("thermal", "110 C", lambda: trained().card(30, junction_c=110.0), act=True),
    scene("thermal", "100 C", lambda: trained().card(30, junction_c=100.0, memory_c=90.0)),
    scene("thermal", "100 C for 29 s", lambda: trained().card(29, memory_c=100.0)),
    scene(
        "thermal", "hotter each time", lambda: changing(junction_c=(100.0, 101.0, 102.0), memory_c=(90.0, 91.0, 103.0))
    ),
    scene("thermal", "cool", lambda: trained().card(30, junction_c=85.0)),
    scene("thermal", "no GPU", trained),
    scene("fan", "stopped", lambda: trained().card(fan_rpm=900).card(60, fan_rpm=0, junction_c=80.0)),
    scene("fan", "stopped for 59 s", lambda: trained().card(fan_rpm=900).card(58, fan_rpm=0, junction_c=80.0)),
    scene(
        "fan",
        "hotter each time",
        lambda: (
            trained()
            .card(fan_rpm=900)
            .card(59, fan_rpm=0, junction_c=80.0)
            .silence(1)
            .card(fan_rpm=0, junction_c=81.0, memory_c=82.0)
            .silence(1)
            .card(fan_rpm=0, junction_c=84.0, memory_c=83.0)
        ),
    ),
    scene("fan", "cool", lambda: trained().card(fan_rpm=900).card(60, fan_rpm=0, junction_c=79.0)),
    scene("fan", "never turned", lambda: trained().card(60, fan_rpm=0, junction_c=90.0)),
    scene("fan", "no GPU", trained),
    scene("power", "over", lambda: trained().card(60, power_w=116.0, power_cap_w=100.0)),
    scene(
        "power", "more each time", lambda: changing(power_w=(117.0, 118.0, 119.0), power_cap_w=(100.0, 101.0, 102.0))
    ),
    scene(
        "power",
        "lower each time",
        lambda: changing(power_w=(9.0,) * 4, power_cap_w=(100.0, 79.0, 78.0, 77.0)),
        hold_s=0.0,
    ),
    scene("power", "at", lambda: trained().card(60, power_w=115.0, power_cap_w=100.0)),
    scene("power", "lowered", lambda: trained().card(power_cap_w=100.0).card(60, power_w=50.0, power_cap_w=79.0)),
    scene(
        "power", "hardly lowered", lambda: trained().card(power_cap_w=100.0).card(60, power_w=50.0, power_cap_w=80.0)
    ),
    scene("power", "no GPU", trained),
    scene("throttling", "heat", lambda: trained().card(120, throttled_by=("thermal", "power"), sclk_hz=800_000_000)),
    scene(
        "throttling",
        "one reason after another",
        lambda: changing(
            throttled_by=(("thermal",), ("thermal", "voltage"), ("voltage",)), sclk_hz=(8 * 10**8, 7 * 10**8, 6 * 10**8)
        ),
    ),
    scene("throttling", "heat, less", lambda: trained().card(119, throttled_by=("thermal",))),
    scene("throttling", "power", lambda: trained().card(120, throttled_by=("power", "current"))),
    scene("throttling", "not reported", lambda: trained().card(5)),
    scene("throttling", "no GPU", trained),
    scene("ecc", "uncorrectable", lambda: worn(GPU, ecc_uncorrectable=2)),
    scene("ecc", "uncorrectable, in the log", lambda: worn(GPU, ecc_uncorrectable=2).kernel(FaultClass.GPU_RESET)),
    scene("ecc", "another's log", lambda: worn(GPU, ecc_uncorrectable=2).kernel(FaultClass.GPU_RESET, gpu=OTHER_GPU)),
    scene("ecc", "101 corrected", lambda: worn(GPU, ecc_correctable=102)),
    scene("ecc", "100 corrected", lambda: worn(GPU, ecc_correctable=101)),
    scene("ecc", "no longer reported", lambda: worn(GPU, ecc_correctable=102).silence(1).card()),
    scene("ecc", "not reported", lambda: trained().card(5)),
    scene("ecc", "no GPU", trained),
    scene("gpu_lost", "30 s", lambda: two_cards().gpu(30, busy=9.0)),
    scene("gpu_lost", "15 s", lambda: two_cards().gpu(15, busy=9.0)),
    scene("gpu_lost", "14 s", lambda: two_cards().gpu(14, busy=9.0)),
    scene("gpu_lost", "steps go on", lambda: two_cards().gpu(15, busy=9.0).step(101).gpu(30, busy=9.0)),
    scene("gpu_lost", "GPUs not named", lambda: others(()).gpu(60, busy=9.0)),
    scene("gpu_lost", "one GPU", lambda: trained().gpu(5, busy=9.0)),
    scene("gpu_lost", "few readings", lambda: two_cards().gpu(15, busy=9.0), min_readings=99),
    scene("gpu_lost", "ended", lambda: two_cards().gpu(30, busy=9.0).exits(1)),
    scene("gpu_lost", "no GPU", trained),
    scene("gpu_fault", "fatal", lambda: trained().kernel(FaultClass.PAGE_FAULT, "page fault at 0x7f", remedy="update")),
    scene("gpu_fault", "a hang", lambda: trained().kernel(FaultClass.GPU_HANG).silence(1)),
    scene("gpu_fault", "a hang, just now", lambda: trained().kernel(FaultClass.GPU_HANG).silence(0.9)),
    scene("gpu_fault", "recovered, and again", recurring),
    scene("gpu_fault", "not fatal", lambda: trained().kernel(FaultClass.SMU, "SMU: busy", fatal=False)),
    scene("gpu_fault", "not fatal, ended", lambda: trained().kernel(FaultClass.SMU, fatal=False).exits(1)),
    scene("gpu_fault", "another GPU's", lambda: trained().kernel(FaultClass.PAGE_FAULT, gpu=OTHER_GPU)),
    scene("gpu_fault", "of no GPU", lambda: trained().kernel(FaultClass.GPU_RESET, gpu=None)),
    scene("gpu_fault", "none", trained),
    scene(
        "machine_fault",
        "a disk's",
        lambda: trained().kernel(FaultClass.IO_ERROR, "sda: I/O error", gpu=None, about="disk"),
    ),
    scene(
        "machine_fault",
        "the machine's",
        lambda: trained().kernel(FaultClass.HUNG_TASK, "hung", gpu=None, about="host", fatal=False),
    ),
    scene("machine_fault", "memory", lambda: trained().kernel(FaultClass.OOM_KILL, "oom", gpu=None)),
    scene(
        "machine_fault", "ended", lambda: trained().kernel(FaultClass.IO_ERROR, "x", gpu=None, about="disk").exits(1)
    ),
    scene("machine_fault", "none", trained),
    scene("other_trainings", "two programs", two_programs),
    scene("other_trainings", "one program", lambda: two_programs(interpreter=True)),
    scene("other_trainings", "one is gone", lambda: two_programs().alive(2, 1, 4242)),
    scene(
        "other_trainings", "one was lost", lambda: two_programs().rank_says(ev.AgentEvent.TRAINS, ended=True).exits(0)
    ),
    scene("other_trainings", "ended", lambda: two_programs().exits(1)),
    scene("other_trainings", "one process", trained),
    # pace
    scene("throughput_drop", "half", slowed),
    scene("throughput_drop", "at two steps a second", lambda: long_story().pace(1200, 0.5).pace(360, 1.0)),
    scene("throughput_drop", "acts", slowed, act=True),
    scene("throughput_drop", "it waits", lambda: slowed(wait_s=1.2)),
    scene(
        "throughput_drop",
        "hot",
        lambda: slowed(throttled_by=("thermal",), io_stall_percent=21.0, memory_stall_percent=11.0),
    ),
    scene(
        "throughput_drop", "not hot", lambda: slowed(throttled_by=(), io_stall_percent=20.0, memory_stall_percent=10.0)
    ),
    scene("throughput_drop", "usual", lambda: long_story().pace(1600)),
    scene("throughput_drop", "wanted", lambda: long_story().pace(1600), at_least_per_s=1.5),
    scene("throughput_drop", "wanted, soon", lambda: long_story().pace(150), at_least_per_s=1.5, window_s=60.0),
    scene("throughput_drop", "wanted, acts", lambda: long_story().pace(1600), at_least_per_s=1.5, act=True),
    scene("throughput_drop", "as wanted", lambda: long_story().pace(1600), at_least_per_s=1.0),
    scene("throughput_drop", "wanted, for minutes", lambda: long_story().pace(400), at_least_per_s=1.5),
    scene("throughput_drop", "early", lambda: long_story().pace(5)),
    scene("throughput_drop", "ended", lambda: slowed().exits(1)),
    scene("data_starved", "no workers", lambda: starved(0)),
    scene("data_starved", "workers not reported", lambda: starved(None)),
    scene("data_starved", "two workers", lambda: starved(2)),
    scene("data_starved", "slow storage", lambda: starved(2, io_stall_percent=10.0, cpu_percent=95.0)),
    scene("data_starved", "no processor left", lambda: starved(2, io_stall_percent=9.9, cpu_percent=90.0)),
    scene("data_starved", "processor left", lambda: starved(2, cpu_percent=89.0)),
    scene("data_starved", "busy GPU", lambda: starved(2).card(9, gpu_busy_percent=31.0)),
    scene("data_starved", "waits less", lambda: long_story().pace(400, wait_s=0.49).card(gpu_busy_percent=10.0)),
    scene("data_starved", "no GPU", lambda: long_story().pace(400, wait_s=0.6)),
    scene("data_starved", "waits not reported", lambda: long_story().pace(400).card(gpu_busy_percent=10.0)),
    scene("data_starved", "no step", lambda: long_story().card(gpu_busy_percent=10.0)),
    scene("data_starved", "ended", lambda: starved(2).exits(1)),
    scene("straggler_rank", "behind", lambda: behind(31)),
    scene("straggler_rank", "behind for less", lambda: behind(29)),
    scene("straggler_rank", "waits", lambda: waiting_ranks(0.1, 0.5)),
    scene("straggler_rank", "all wait", lambda: waiting_ranks(0.2, 0.5)),
    scene("straggler_rank", "one rank", trained),
    scene("straggler_rank", "the others are not read", lambda: unreadable(behind(31), fo.recorder_part(1))),
    scene("straggler_rank", "ended", lambda: behind(31).exits(1)),
    scene("fp32_fallback", "single", lambda: precise("half", "single", why="check_amp failed")),
    scene("fp32_fallback", "single, unknown why", lambda: precise("half", "single")),
    scene("fp32_fallback", "half", lambda: precise("half", "half")),
    scene("fp32_fallback", "on the CPU", lambda: precise("half", "single", device="cpu")),
    scene("fp32_fallback", "not reported", trained),
    scene("fp32_fallback", "ended", lambda: precise("half", "single").exits(1)),
    scene("deadline", "too late", planned, at_unix_s=START.unix_s + 7200),
    scene("deadline", "an hour too late", planned, at_unix_s=START.unix_s + 900 + 5500),
    scene("deadline", "now", planned, at_unix_s=START.unix_s + 900),
    scene("deadline", "in time", planned, at_unix_s=START.unix_s + 36000),
    scene("deadline", "over", planned, at_unix_s=START.unix_s + 60),
    scene("deadline", "none set", planned),
    scene("deadline", "early", lambda: planned_and(60), at_unix_s=START.unix_s + 60),
    scene("deadline", "not planned", lambda: long_story().pace(900), at_unix_s=START.unix_s + 7200),
    scene("deadline", "ended", lambda: planned().exits(1), at_unix_s=START.unix_s + 7200),
    scene("milestone", "a tenth", lambda: planned().pace(101, batches=1000)),
    scene("milestone", "the first epoch is resumed", lambda: planned_from(epoch=0)),
    scene("milestone", "the second epoch is resumed", lambda: planned_from(epoch=1)),
    scene("milestone", "none yet", lambda: planned_and(99)),
    scene("milestone", "not planned", trained),
    # process
    scene("crash", "a status", lambda: trained().prints("Epoch 3/10").exits(1)),
    scene("crash", "a signal", lambda: trained().exits(signal=9)),
    scene("crash", "a child's signal", lambda: trained().exits(137)),
    scene("crash", "a segmentation fault", lambda: trained().exits(signal=11)),
    scene(
        "crash", "the kernel", lambda: trained().kernel(FaultClass.PAGE_FAULT, "page fault", remedy="update").exits(1)
    ),
    scene(
        "crash",
        "killed for memory",
        lambda: trained().kernel(FaultClass.OOM_KILL, "Out of memory: 4242", gpu=None, pid=4242).exits(signal=9),
    ),
    scene("crash", "printed", lambda: trained().prints("HIP out of memory", FaultClass.OOM_GPU).exits(1)),
    scene(
        "crash",
        "raised",
        lambda: (
            trained()
            .rank_says(
                ev.AgentEvent.EXCEPTION, type="ValueError", message="bad", traceback='File "a.py", line 3, in f', rank=1
            )
            .exits(1)
        ),
    ),
    scene(
        "crash",
        "interrupted",
        lambda: trained().rank_says(ev.AgentEvent.EXCEPTION, type="KeyboardInterrupt", message="").exits(1),
    ),
    scene(
        "crash",
        "interrupted by a signal",
        lambda: trained().rank_says(ev.AgentEvent.EXCEPTION, type="KeyboardInterrupt", message="").exits(signal=2),
    ),
    scene(
        "crash",
        "no numbers",
        lambda: trained().steps(101, 103, loss=NAN).prints("loss is nan", FaultClass.NAN).exits(1),
    ),
    scene("crash", "raised without a message", lambda: died_of(type="KeyError")),
    scene("crash", "raised without a type", lambda: died_of(message="it is gone")),
    scene("crash", "raised without a word", died_of),
    scene("crash", "not started", lambda: long_story().started().exits(127, error="python: not found")),
    scene("crash", "short of its plan", lambda: planned().exits(0)),
    scene("crash", "short of its plan, not read", lambda: unreadable(planned(), fo.recorder_part(0)).exits(0)),
    scene("crash", "no step seen", lambda: long_story().started().says(ev.AgentEvent.PLAN, epochs=3).exits(0)),
    scene("crash", "complete", lambda: planned_and(1000, epochs=1).exits(0)),
    scene(
        "crash",
        "complete, then a signal",
        lambda: planned_and(1000, epochs=1).says(ev.AgentEvent.TRAIN_END).exits(signal=11),
    ),
    scene("crash", "no exit record", lambda: trained().lost()),
    scene("crash", "no exit record, and the last boot ended with a fault", of_the_last_boot),
    scene("crash", "only reported", lambda: trained().exits(1), act=False),
    scene("crash", "none", trained),
)


def play_all() -> Played:
    """Return every scene with its text and the flag at its end."""
    known: dict[str, dict[str, int]] = defaultdict(dict)
    return tuple((item, *item.play(known[item.rule])) for item in SCENES)


def tell_rules(played: Played | None = None) -> str:
    """Return every scene."""
    return "\n".join(text for _, text, _ in played or play_all())


TRANSCRIPTS = {"rules": tell_rules}


@pytest.fixture(name="played", scope="module")
def scenes_played_once() -> Played:
    """Every scene; a cache of the module's would outlive a change of the rules in the same process."""
    return play_all()


def test_each_scene_reads_as_it_was_reviewed(played: Played) -> None:
    assert tell_rules(played) == read("rules")


def test_each_rule_has_a_scene_in_which_it_flags_and_one_in_which_it_does_not(played: Played) -> None:
    outcomes = defaultdict(set)
    for item, _, flag in played:
        outcomes[item.rule].add(flag is None)
    complete = {name for name, seen in outcomes.items() if seen == {True, False}}
    assert complete == set(MAKE), "each rule needs two scenes in SCENES, one in which it flags and one in which not"
