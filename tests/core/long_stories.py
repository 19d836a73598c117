"""Stories of hours: cards, memory and disks read for a while, steps that wait for data, words of ranks."""

from __future__ import annotations

from typing import Any

from typing_extensions import Self

from supervisor.core import events as ev
from supervisor.core.checkpoints.checkpoint import Checkpoint, Fingerprint, Verdict
from supervisor.core.readings import DiskReading, GpuReading, HostReading, ProcessReading, StepRecord

from .stories import GB, GPU, JOB, Story


class LongStory(Story):
    """A story whose sensors can be told in every detail."""

    def pace(
        self,
        seconds: float,
        every_s: float = 1.0,
        *,
        wait_s: float | None = None,
        loss: float | None = 1.0,
        rank: int = 0,
        batches: int | None = None,
    ) -> Self:
        """Steps each `every_s` for `seconds`, going on from the last."""
        last = self.history.pace.last if rank == 0 else getattr(self.history.ranks.get(rank), "last", None)
        step = last.step if last is not None else 0
        for _ in range(round(seconds / every_s)):
            self.now, step = self.now.plus(every_s), step + 1
            epoch = None if batches is None else (step - 1) // batches
            record = StepRecord(at=self.now, step=step, epoch=epoch, loss=loss, data_wait_s=wait_s)
            self.put(ev.StepsMade(at=self.now, job=JOB, attempt=self.attempt, records=(record,), rank=rank))
        return self

    def step(
        self, step: int, *, rank: int = 0, loss: float | None = 1.0, epoch: int | None = None, begins: bool = False
    ) -> Self:
        """One step, now."""
        record = StepRecord(at=self.now, step=step, epoch=epoch, loss=loss, begins=begins)
        self.put(ev.StepsMade(at=self.now, job=JOB, attempt=self.attempt, records=(record,), rank=rank))
        return self

    def card(self, seconds: float = 0.0, every_s: float = 1.0, gpu: str = GPU, **fields: Any) -> Self:
        """One card is read now, and then every `every_s` for `seconds`."""
        for count in range(round(seconds / every_s) + 1):
            if count:
                self.now = self.now.plus(every_s)
            reading = GpuReading(at=self.now, gpu=gpu, source="sysfs", **fields)
            self.put(ev.GpusRead(at=self.now, readings=(reading,)))
        return self

    def alive(self, seconds: float = 0.0, *pids: int, every_s: float = 1.0, listed: bool = True) -> Self:
        """The process tree is read for `seconds`."""
        for count in range(round(seconds / every_s) + 1):
            if count:
                self.now = self.now.plus(every_s)
            reading = ProcessReading(at=self.now, processes=len(pids), pids=pids if listed else None)
            self.put(ev.ProcessesRead(at=self.now, job=JOB, attempt=self.attempt, reading=reading))
        return self

    def hours(self, hours: float, per_hour: float, *, of: str, start: float = 4.0, wobble: float = 0.0) -> Self:
        """For `hours`, twice a minute, a memory of `start` GB rises by `per_hour` GB an hour, wobbling by as much."""
        for count in range(round(hours * 120)):
            self.now = self.now.plus(30.0)
            used = round((start + per_hour * count / 120 + wobble * (count * 7919 % 5 - 2)) * GB)
            if of == "allocator":
                self.allocator(used, reserved=used + GB)
            elif of == "card":
                self.card(vram_used_bytes=used, vram_total_bytes=24 * GB)
            elif of == "disk":
                disk = DiskReading(path="/runs", free_bytes=100 * GB - used, total_bytes=100 * GB)
                self.put(ev.HostRead(at=self.now, reading=HostReading(at=self.now, disks=(disk,))))
            else:
                host = HostReading(at=self.now, memory_total_bytes=32 * GB, memory_available_bytes=30 * GB - used)
                self.put(ev.HostRead(at=self.now, reading=host))
                tree = ProcessReading(at=self.now, processes=5, rss_bytes=used)
                self.put(ev.ProcessesRead(at=self.now, job=JOB, attempt=self.attempt, reading=tree))
        return self

    def allocator(self, allocated: int, *, reserved: int, retries: int = 0, rank: int = 0, **more: Any) -> Self:
        """The agent tells of the allocator, on a card of 24 GB."""
        facts = {"reserved_bytes": reserved, "allocated_bytes": allocated, "retries": retries, "total_bytes": 24 * GB}
        return self.rank_says(ev.AgentEvent.ALLOCATOR, rank=rank, **{**facts, **more})

    def rank_says(
        self, agent_event: ev.AgentEvent, *, rank: int | None = 0, pid: int | None = 4242, **facts: Any
    ) -> Self:
        """A process of the training says something."""
        self.put(
            ev.AgentReported(
                at=self.now,
                job=JOB,
                attempt=self.attempt,
                agent_event=agent_event,
                facts=dict(facts),
                rank=rank,
                pid=pid,
            )
        )
        return self

    def epoch_ends(self, epoch: int, **facts: Any) -> Self:
        """A validation is over."""
        return self.rank_says(ev.AgentEvent.EPOCH_END, epoch=epoch, **facts)

    def seen(
        self,
        path: str,
        verdict: Verdict | None,
        reason: str | None = None,
        *,
        step: int | None = None,
        source: str | None = None,
        ago_s: float = 0.0,
    ) -> Self:
        """A checkpoint was saved now, or so long ago, and looked at; a generation names its `source`."""
        fingerprint = Fingerprint(size_bytes=1, modified_ns=round((self.now.unix_s - ago_s) * 1e9), inode=1)
        item = Checkpoint(path=path, fingerprint=fingerprint, verdict=verdict, reason=reason, step=step, source=source)
        self.put(ev.CheckpointSeen(at=self.now, job=JOB, attempt=self.attempt, checkpoint=item))
        return self


def long_story(gpus_used: tuple[str, ...] = (GPU,)) -> LongStory:
    """Begin a story of one attempt on one card."""
    return LongStory(gpus_used)


def trained(steps: int = 100) -> LongStory:
    """An ordinary beginning."""
    timeline = long_story()
    timeline.training(steps)
    return timeline
