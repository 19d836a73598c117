"""Puts what happens to one attempt into the window of what is known about it; it draws no conclusion.

A new attempt gets a new window: nothing that a rule could remember crosses a restart.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass

from supervisor.core import events as ev
from supervisor.core.card_facts import CardFacts
from supervisor.core.checkpoints import Checkpoint
from supervisor.core.findings import KernelFinding
from supervisor.core.moments import Moment
from supervisor.core.pace import Pace
from supervisor.core.readings import ProcessReading, Stage, StepRecord
from supervisor.core.trend import Trend
from supervisor.core.window import READINGS_KEPT, Window

RANKS_KEPT = 64
PAUSING = frozenset({Stage.SETUP, Stage.WARMUP, Stage.VALIDATE, Stage.CHECKPOINT, Stage.ENDED})
"""Time spent in these is no time of stepping."""


@dataclass(slots=True, kw_only=True)
class History(Window):
    """The window of one attempt, which each event of it is added to; `now` is the time of the newest."""

    def add(self, event: ev.Event) -> None:
        """Take in one event; events of other attempts must not be handed in."""
        if event.at.monotonic_s > self.now.monotonic_s:
            self.now = event.at
        if isinstance(event, ev.AttemptEvent):
            self._add_of_attempt(event)
        else:
            self._add_of_machine(event)

    def _add_of_attempt(self, event: ev.AttemptEvent) -> None:
        match event:
            case ev.StepsMade():
                self._add_steps(event)
            case ev.Looked():
                self._look(event.at)
            case ev.StageEntered():
                self._enter(event)
            case ev.AgentSaid():
                self._add_word(event)
            case ev.OutputSeen():
                self._add_output(event)
            case ev.ProcessesRead():
                self._add_processes(event.reading)
            case ev.CheckpointSeen():
                self._prove(event.checkpoint)
            case ev.Launched() | ev.LaunchFailed() | ev.Exited() | ev.HostLost():
                self._add_life(event)
            case ev.CheckpointNotKept():
                self.not_kept = event
            case _:
                pass

    def _add_output(self, event: ev.OutputSeen) -> None:
        self.last_line, self.output_at = event.last_line or self.last_line, event.at
        self.output.extend(event.findings)
        if event.progress_step is not None and event.progress_step != self.output_step:
            self.output_step, self.output_step_at = event.progress_step, event.at

    def _add_life(self, event: ev.Launched | ev.LaunchFailed | ev.Exited | ev.HostLost) -> None:
        match event:
            case ev.Launched():
                self.training_pid = event.training_pid
            case ev.LaunchFailed():
                self.launch_error = event.error
            case ev.Exited():
                self.exit = event.status
            case ev.HostLost():
                self.host_lost = event.reason

    def _add_of_machine(self, event: ev.Asked | ev.MachineEvent) -> None:
        match event:
            case ev.GpusRead():
                self.gpus_read_at = event.at
                for reading in event.readings:
                    self.gpus.setdefault(reading.gpu, deque(maxlen=READINGS_KEPT)).append(reading)
                    self.cards.setdefault(reading.gpu, CardFacts(reading.at)).add(reading)
            case ev.HostRead():
                self.host.append(event.reading)
                for disk in event.reading.disks:
                    used = float(disk.total_bytes - disk.free_bytes)
                    self.disks_used.setdefault(disk.path, Trend()).add(event.reading.at, used)
            case ev.KernelSaid():
                self._add_findings(event.findings)
            case ev.ClockStepped():
                self.clock_stepped_at = event.at
            case _:
                pass

    def _add_findings(self, findings: tuple[KernelFinding, ...]) -> None:
        """Take findings in; one of a key that is known already tells the same event anew."""
        for finding in findings:
            place = next((place for place, one in enumerate(self.kernel) if one.key == finding.key), None)
            if place is None:
                self.kernel.append(finding)
            else:
                self.kernel[place] = finding

    def _look(self, at: Moment, *, only_where_told: bool = False) -> None:
        known = self.looked_at
        if (known is None and not only_where_told) or (known is not None and at.monotonic_s > known.monotonic_s):
            self.looked_at = at

    def _enter(self, event: ev.StageEntered) -> None:
        if event.stage is not self.stage:
            self._learn_stage(event.at)
        self.whole = event.whole
        self.stage, self.stage_since = event.stage, event.at
        self.paused = self.paused or event.stage in PAUSING
        if event.stage is Stage.CHECKPOINT and self.steps:
            self.saving_step = self.steps[-1].step
        if event.stage in (Stage.SETUP, Stage.WARMUP):
            self.train_ended = False

    def _add_step(self, record: StepRecord) -> None:
        self.claimed = True
        self._learn_step(record)
        self.losses.add(record)
        self.pace.add(record, stepping=not self.paused)
        self.paused = False
        self.steps.append(record)
        self.last_step_at = record.at
        if self.first_step_at is None:
            self.first_step_at = record.at
        if any(value is not None and not math.isfinite(value) for value in (record.loss, record.grad_norm)):
            self.non_finite.append(record)

    def _add_steps(self, event: ev.StepsMade) -> None:
        if event.rank == 0:
            self._look(event.at, only_where_told=True)
            for record in event.records:
                self._add_step(record)
        elif event.rank in self.ranks or len(self.ranks) < RANKS_KEPT:
            pace = self.ranks.setdefault(event.rank, Pace())
            for record in event.records:
                pace.add(record, stepping=not self.paused)

    def _add_processes(self, reading: ProcessReading) -> None:
        self.processes.append(reading)
        if reading.rss_bytes is not None:
            self.rss.add(reading.at, float(reading.rss_bytes))

    def _prove(self, checkpoint: Checkpoint) -> None:
        if checkpoint.fingerprint.size_bytes:
            self.saved_unix_s = max(self.saved_unix_s or 0.0, checkpoint.saved_unix_s)
        if checkpoint.verdict is None:
            return
        proofs = self.proofs.setdefault(checkpoint.path, deque(maxlen=4))
        if not any(one.key == checkpoint.key and one.verdict is checkpoint.verdict for one in proofs):
            proofs.append(checkpoint)

    def _learn_stage(self, ended_at: Moment) -> None:
        since = self.stage_since
        if self.stage in (Stage.VALIDATE, Stage.CHECKPOINT) and since is not None and not self._disturbed(since):
            self.learned.add(self.stage, ended_at.seconds_since(since))

    def _learn_step(self, record: StepRecord) -> None:
        """Learn how long a step took, and its wait for data, from the step before it, if nothing came in between."""
        last, wait_s = self.last_step_at, record.data_wait_s
        if last is None or self.starting or self._disturbed(last):
            return
        if wait_s is not None:
            self.learned.add(Stage.DATA_WAIT, wait_s)
        if self.stage_since is None or self.stage_since.seconds_since(last) <= 0:
            self.learned.add(Stage.STEP, record.at.seconds_since(last) - (wait_s or 0.0))

    def _disturbed(self, since: Moment) -> bool:
        jumped = self.clock_stepped_at
        return self.troubled or (jumped is not None and jumped.seconds_since(since) >= 0)

    def _add_word(self, event: ev.AgentSaid) -> None:
        self.told.add(event)
        match event.word:
            case ev.Word.ALIVE:
                self.agent_alive = True
            case ev.Word.CLAIMED:
                self.claimed = True
            case ev.Word.PATCHED:
                self.patched = True
            case ev.Word.PLAN:
                self._plan(event.facts)
            case ev.Word.CHECKPOINT_SAVED:
                self.save_requested = event.facts.get("requested") is True
                if not self.save_requested:
                    step = _whole(event.facts.get("step"))
                    made = self.steps[-1].step if self.steps else None
                    self.saved.append((event.at, made if step is None else step))
            case ev.Word.HOOK_FAILED:
                self.hook_failed_at = event.at
            case ev.Word.EXCEPTION:
                self.exception, self.exception_at = event.facts, event.at
            case ev.Word.TRAIN_END:
                self.train_ended = True
            case _:
                pass

    def _plan(self, facts: dict[str, object]) -> None:
        self.planned, self.train_ended = True, False
        self.batches_per_epoch = _whole(facts.get("batches_per_epoch"))
        self.epochs = _whole(facts.get("epochs"))
        device = facts.get("device")
        self.device = device if isinstance(device, str) else None


def _whole(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None
