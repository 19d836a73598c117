"""One tune of a living training: a thread that orders settings, reads the steps made with them, and asks the core.

A tune acts on nothing but the settings that it orders, which are lent for LEASE_S: if the thread, the daemon or the
training ends at any point, the owner's settings come back by themselves.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

from supervisor.control import record_types, types
from supervisor.core.events import AgentEvent
from supervisor.core.foreign_values import as_dict
from supervisor.core.readings import StepRecord
from supervisor.core.tuning import compare
from supervisor.core.tuning.bottleneck import Shares, Traced, explain, find_bottlenecks, name_of, share_out, traced_of
from supervisor.core.tuning.budget import can_trace, count_left, end_unaffordable, find_too_late
from supervisor.core.tuning.gpu_time import GpuTimes
from supervisor.core.tuning.guards import Block, Memory
from supervisor.core.tuning.knob import Facts, NotTried, choose_knobs, facts_of
from supervisor.core.tuning.loader import (
    LOADER_KNOBS,
    WAITING_WORTH,
    find_idle_loader,
    find_starved,
    workers_of,
)
from supervisor.core.tuning.restarts import StartArm
from supervisor.core.tuning.session import Session, begin_session
from supervisor.core.tuning.starts import RESTART, Start, list_left_to_starts, read_version
from supervisor.core.tuning.stock import read_sample
from supervisor.core.tuning.switches import Shown, Switch, Switches
from supervisor.core.tuning.trial import Trial
from supervisor.daemon.clock import Clock
from supervisor.daemon.tunes.before import Before
from supervisor.daemon.tunes.blocks import (
    BlockUnderWay,
    Collected,
    Counted,
    HostMemory,
    LeadIn,
    Used,
    find_span_s,
    is_diagnosed,
    list_warnings,
    read_host_memory,
    read_rss_bytes,
    read_used,
    see_steps,
    time_samples,
)
from supervisor.daemon.tunes.progress import Progress
from supervisor.daemon.tunes.start_trials import StartDeps, StartTrials
from supervisor.daemon.tunes.step_reader import StepReader
from supervisor.runner import tuned
from supervisor.sources.attempt.agent_log import AgentFact, AgentLogReader

log = logging.getLogger(__name__)

LEASE_S = 30.0
RENEW_S = 10.0
POLL_S = 0.05
SILENT_S = 180.0
"""Without a step or an answer for this long a tune ends."""
COMPILING_S = 600.0
"""Likewise, where an order has a model compiled: nothing can be read from the training meanwhile."""
LONGEST = 3
"""Times the time given, after which a tune ends whatever it waits for; after twice that it begins no block."""
NEW_UNTIL = 0.75
"""Share of the time given after which nothing new is tried."""
UNFINISHED = "it did not come to its end"
PROVEN_ON = ("torch", "gpu")
"""Facts of the agent without which what was adopted proves nothing."""
COLD_HALVES = 6
"""So many such halves are left out of a block; after that its pace is what it is."""
COUNTED_BLOCKS = 5
"""Further ones of new workers, after which one counts although it is not known how fast they make batches."""
FED_BLOCKS = range(2, 7)  # of new workers that ended a long wait, before the owner's are begun once more to prove it


class Ended(Exception):  # noqa: N818 - how a tune ends before its time
    """The tune cannot go on; the text says why."""


class Tune(threading.Thread):
    """One tune of one attempt."""

    def __init__(  # noqa: PLR0913, PLR0917 - what it is of, what it may, and what ends it
        self,
        clock: Clock,
        job: str,
        folder: Path,
        given: types.TuneBody,
        find_fault: Callable[[], str | None],
        tries: int | None = None,
        starts: StartDeps | None = None,
        host_memory: Callable[[], HostMemory] = read_host_memory,
    ) -> None:
        """`tries`: how often a tune of it has begun by itself, with this one; None for one that was asked for.

        `starts`: what starts of the training are ordered by; None: none are.
        """
        super().__init__(name=f"tune {job}", daemon=True)
        self._tries, self._starts, self._host_memory = tries, starts, host_memory
        self.job, self.ended = job, threading.Event()
        self.poll_s = POLL_S
        self._clock, self.folder, self._given, self._find_fault = clock, folder, given, find_fault
        self._progress = Progress()
        self._numbers = count(int(1000 * clock.now().unix_s))  # none that the agent has answered
        self._steps = StepReader(clock, folder)
        self._log = AgentLogReader(folder)
        self._held: Mapping[str, object] = {}
        self._renew_at = 0.0
        self._number = 0
        self._switches = Switches(facts=Facts())
        self._gpu_times = GpuTimes()
        self._newest: Collected | None = None
        self._owner_times: tuple[float, ...] = ()
        """What a sample took in each of the owner's steps before anything was tried."""
        self._first_step = 0
        self._warned: list[str] = []
        """What the training warned of since the block began."""
        self._proven_on: Mapping[str, object] = {}
        """The torch and the GPU of the training, as its agent names them."""
        self._began = clock.now()

    def run(self) -> None:
        """Tune until proven, out of time, or ended; whatever comes, the owner's settings or proven ones hold."""
        adopted = False
        try:
            if self._tries is not None:
                self._progress.problem = UNFINISHED
                self._keep()
                self._progress.problem = None
            adopted = self._tune()
            self._progress.state = "ended"
        except Ended as error:
            self._progress.problem, self._progress.state = str(error), "ended"
        except Exception as error:  # a fence: the settings go back whatever failed
            log.exception("tune.failed", extra={"fields": {"job": self.job}})
            self._progress.problem, self._progress.state = f"the tune failed: {type(error).__name__}: {error}", "ended"
        finally:
            if not adopted:
                self.withdraw()
            self._steps.close()
        fields = {"job": self.job, "adopted": len(self.report().adopted), "problem": self._progress.problem}
        log.info("tune.ended", extra={"fields": fields})
        if self._tries is not None and not adopted:
            with suppress(OSError):  # what was kept at its beginning says that it has begun
                self._keep()

    def withdraw(self) -> None:
        """Put the owner's settings back; where the disk refuses that, they hold once the time of the order is over."""
        try:
            tuned.withdraw_order(self.folder)
        except OSError as error:
            log.error("tune.not_withdrawn", extra={"fields": {"job": self.job, "error": error.strerror}})

    def _keep(self) -> None:
        """Keep what came of it, for the next attempts and against its being begun again; raise OSError."""
        report = record_types.encode(self._progress.report(self.job, "ended"))
        command = tuned.launched_command(self.folder)
        tuned.keep(self.folder.parent, command, report, self._proven_on, tries=self._tries or 0)

    def report(self) -> record_types.TuneReport:
        """Return what is known now."""
        return self._progress.report(self.job)

    # --- the course of a tune ----------------------------------------------------------------------------------------

    def _tune(self) -> bool:
        """Return whether settings were adopted, which then hold."""
        now = self._progress
        before = self._read_before()
        facts = self._read_facts()
        self._first_step = self._steps.last_step
        diagnosed = self._diagnose(before, facts)
        now.bottleneck_after, remedied = now.bottleneck_before, tuned.remedied_settings(self.folder)
        knobs, left = choose_knobs(facts, may=self._given.may, remedied=remedied)
        start = Start(env=tuned.launched_env(self.folder), torch=read_version(self._proven_on.get("torch")))
        arms, not_started = self._choose_starts(facts, start, remedied)
        now.left = left = (*left, *not_started)
        session = begin_session(knobs, left, facts, self._gpu_times)
        session = session.having(compare.typical_s(diagnosed.times), diagnosed.seen)
        if self._given.dry_run:
            trying = [f"{knob.name} {list(knob.values(facts))}" for knob in knobs]
            trying += [f"{arm.knob} {arm.value} (by starts)" for arm in arms]
            now.trying = ", ".join(trying)
            now.session = Session(left=left)
            return False
        now.state = "trying"
        session = self._run_session(session, facts)
        adopted = self._adopt(session)
        self._try_starts(arms, facts)
        return adopted

    def _choose_starts(
        self, facts: Facts, start: Start, remedied: Sequence[str]
    ) -> tuple[tuple[StartArm, ...], tuple[NotTried, ...]]:
        """Return what only a start can apply and may be tried, and what is left with the reason."""
        may, last = self._given.may, self._steps.last
        if self._starts is None:
            return (), () if RESTART in may else list_left_to_starts(facts, start, remedied)
        samples = None if last is None else last.samples
        return self._starts.choose_arms(self.job, facts, start, remedied, may, samples)

    def _try_starts(self, arms: Sequence[StartArm], facts: Facts) -> None:
        """Have the training started with what only a start can apply, after all that could be applied to it alive."""
        now = self._progress
        if self._starts is None or not arms:
            return
        job, folder, deps, ended = self.job, self.folder.parent, self._starts, self.ended
        trials = StartTrials(
            self._clock, job, folder, deps, ended, lambda: self._given.for_s - self._spent_s(), self._host_memory
        )
        found = trials.run(arms, self._find_memory(facts), now.show_starts)
        now.take_starts(found)
        if found.adopted:
            self._keep()

    def _run_session(self, session: Session, facts: Facts) -> Session:
        now, hurried = self._progress, False
        while session.wanted is not None:
            now.session, now.trying, now.left = session, session.tried, session.left
            now.pairs = 0 if session.trial is None else len(session.trial.comparison.pairs)
            if not hurried and self._spent_s() > NEW_UNTIL * self._given.for_s:
                session, hurried = session.without_more("the time given was over"), True
                continue
            if self._spent_s() > 2 * self._given.for_s:
                raise Ended("the time given was over before anything was confirmed; the owner's settings hold")
            session = self._make_block(session, facts)
        now.session, now.left = session, session.left
        return session

    def _count_left(self, *, to_end: bool = False) -> int:
        pace_s = None if self._newest is None else self._newest.pace_s
        return count_left(self._count_made(), self._spent_s(), pace_s, self._given.steps, to_end=to_end)

    def _make_block(self, session: Session, facts: Facts) -> Session:
        trial = session.trial
        if trial is None:
            return session
        why = self._find_pointless(trial, facts)
        if why is not None and trial.arm is not None:
            return session.postponed(trial.arm, why)
        late = find_too_late(session, 2 * self._given.for_s - self._spent_s())
        if late is not None:
            return session.after_refusal(late)
        reserve = self._switches.count_reserve(trial.base, trial.settings)
        left, to_end = self._count_left() - reserve, self._count_left(to_end=True) - reserve
        over = end_unaffordable(session, left, to_end, self._switches.count_steps)
        if over is not None:
            return over
        if trial.arm is None and trial.block == 1 and not self._switches.is_run_out(trial.settings):
            session = session.begun_again()  # that block was of batches that lay ready
        return self._make_wanted(session, session.wanted or {}, facts)

    def _make_wanted(self, session: Session, wanted: Mapping[str, object], facts: Facts) -> Session:
        """Return the session after a block of `wanted`, or after the training has refused these settings."""
        trial, held, first, switches = session.trial, self._held, self._steps.last_step, self._switches
        was_known = switches.find_made_s(wanted) is not None
        proves = trial is None or trial.arm is None
        kind, switch = switches.kind_of(held, wanted, proves=proves), switches.plan(held, wanted, proves=proves)
        beaten_s = None if switch.is_exchange or wanted == held else self._find_beaten(trial)
        if wanted != held:
            self._newest = None if switch.is_exchange else self._newest  # of another loader
            before, answer = self._steps.last, self._order(wanted)
            if switches.find(wanted) is not None and not switch.is_exchange:
                session = self._lengthen(session, held, before)
            self._warned += list_warnings(answer.get("warned"))
            refused = as_dict(answer.get("refused"))
            if refused:
                return self._after_refusal(session, wanted, refused)
        self._warned = []
        collected, is_run_out = self._collect_paced(switch, wanted, facts, beaten_s, proves=proves)
        collected = self._collect_counted(collected, wanted) if switch.is_exchange else collected
        self._newest = collected
        self._switches = self._switches.after_switch(kind, self._steps.last_step - first)
        self._note_block(wanted, collected, is_run_out=is_run_out)
        is_new = not was_known and not switch.is_exchange
        return self._settle_block(session, wanted, facts, collected, is_new=is_new)

    def _settle_block(
        self, session: Session, wanted: Mapping[str, object], facts: Facts, collected: Collected, *, is_new: bool
    ) -> Session:
        """Return the session after a block was made; `is_new`: the first with the loader that holds."""
        trial = session.trial
        why = self._find_new_warning() if trial is not None and trial.is_arms_turn else None
        if why is not None:
            return session.after_refusal(why)
        if can_trace(session, self._count_left(), self._switches.count_steps):
            session = replace(session, gpu_times=session.gpu_times.after(wanted, self._trace(wanted)))
        memory = self._find_memory(facts)
        slowdown = self._switches.find_slowdown(wanted, collected.pace_s)
        if slowdown > 1 and is_new and trial is not None and trial.block:
            return session.begun_again()  # those before this one were of batches that lay ready
        block_s = compare.typical_s(collected.times) * slowdown
        after = session.after_block(block_s, collected.seen, memory)
        is_fed = trial is not None and self._switches.has_ended_wait(trial.base, trial.settings)
        return self._settle_fed(after, wanted) if is_fed else after

    def _lengthen(self, session: Session, held: Mapping[str, object], before: StepRecord | None) -> Session:
        """Return the session whose newest block has the steps that were made with `held` until others were set.

        For a switch to settings that were set before nothing else is done in them.
        """
        newest, passed = self._newest, self._steps.passed
        if newest is None or newest.is_of_turns or before is None or before.step != newest.last_step:
            return session
        times = (*newest.times, *time_samples(before, passed))
        slowdown = self._switches.find_slowdown(held, newest.pace_s)
        return session.lengthened(compare.typical_s(times) * slowdown, self._look(passed, (), None))

    def _settle_fed(self, session: Session, wanted: Mapping[str, object]) -> Session:
        """Return the session with workers settled that ended a long wait, after more of their blocks if it takes them.

        They are compared with as many parts of the owner's first steps, until they need no proof by a further exchange.
        """
        further_s, settled = list[float](), session
        for blocks in FED_BLOCKS:
            if not session.is_fed_once or settled.alone is not None or len(self._owner_times) < blocks:
                break
            if blocks > FED_BLOCKS[0]:
                made = self._collect(0, compare.block_is_complete, workers_of(wanted, self._switches.facts))
                further_s.append(compare.typical_s(made.times) * self._switches.find_slowdown(wanted, made.pace_s))
            settled = session.after_starving(compare.divide_s(self._owner_times, blocks), further_s) or settled
        return settled

    def _after_refusal(self, session: Session, wanted: Mapping[str, object], refused: Mapping[str, object]) -> Session:
        """Return the session after some settings were refused; the others stay, as no worker is exchanged for that."""
        self._order({knob: value for knob, value in wanted.items() if knob not in refused})
        arm = None if session.trial is None else session.trial.arm
        if arm is not None and arm.knob not in refused and any(knob in refused for knob, _ in arm.along):
            return session.without_along(refused)
        return session.after_refusal(str(next(iter(refused.values()))), for_now=True)

    def _find_beaten(self, trial: Trial | None) -> float | None:
        """Return the time of an arm's counterpart just made, where that had batches ready whenever it wanted one."""
        shown = None if trial is None else self._switches.find(trial.base)
        ready = shown is not None and shown.waits_for_none
        return trial.blocks[0] if trial is not None and trial.is_arms_turn and trial.blocks and ready else None

    def _collect_paced(
        self, switch: Switch, wanted: Mapping[str, object], facts: Facts, beaten_s: float | None, *, proves: bool
    ) -> tuple[Collected, bool]:
        """Return a block of steps, and whether none of them is faster because its batches were made before.

        Batches that lie ready make no step slower: an arm that with them is no faster than `beaten_s` is none without.
        One that is faster is taken for that where its workers have processors to spare, until the last comparison.
        """
        workers, cold = workers_of(wanted, facts), COLD_HALVES if switch.is_exchange else 0
        is_run_out = self._switches.is_run_out(wanted)
        returns = switch.is_exchange and switch.is_known and is_run_out
        if not switch.ahead or (beaten_s is None and not returns):
            found = self._collect(switch.drop, compare.block_is_complete, workers, switch.ahead, cold)
            return found, is_run_out or proves or switch.ahead > 0 or not switch.is_known
        first = self._steps.last_step
        early = self._collect(switch.drop, compare.block_is_complete, workers, 0, cold)
        idle = beaten_s is not None and compare.typical_s(early.times) > (1 - compare.IDLE_GAIN) * beaten_s
        if (
            idle
            or self._switches.keeps_up(wanted, first)
            or (returns and early.wait is not None and early.wait < WAITING_WORTH)
        ):
            return early, True
        if not proves and not returns and self._switches.has_spare(wanted, early.busy):
            return early, False
        left = switch.drop + switch.ahead - (self._steps.last_step - first)
        later = self._collect(0, compare.block_is_complete, workers, max(0, left))
        return replace(later, seen=early.seen.followed_by(later.seen)), True

    def _collect_counted(self, found: Collected, wanted: Mapping[str, object]) -> Collected:
        """Return a block as `found` made once it is known how fast new workers make batches, if all are at work."""
        for _ in range(COUNTED_BLOCKS):
            self._read_reports()
            if not self._switches.is_being_counted(wanted) or (found.wait or 0.0) >= WAITING_WORTH:
                break
            later = self._collect(0, compare.block_is_complete, workers_of(wanted, self._switches.facts))
            found = replace(later, seen=found.seen.followed_by(later.seen))
        return found

    def _find_pointless(self, trial: Trial, facts: Facts) -> str | None:
        """Return why an arm that was not begun can gain nothing while the present settings hold."""
        if trial.arm is None or trial.is_begun:
            return None
        shown, workers = self._switches.find(trial.base), workers_of(trial.base, facts)
        if shown is None or shown.wait is None:
            return None
        if trial.arm.knob not in LOADER_KNOBS:
            return find_starved(shown.wait, workers, facts, shown.busy)
        return find_idle_loader(trial.arm, shown.wait, workers, facts, shown.busy)

    def _find_new_warning(self) -> str | None:
        """Return what the training warned of in a block of an arm, and not before; None where it did not."""
        self._read_reports()
        return f"the training warns: {self._warned[0]}" if self._warned else None

    def _read_reports(self) -> tuple[AgentFact, ...]:
        found = self._log.read(self._clock.now())
        for fact in found:
            if fact.agent_event is AgentEvent.TUNING:
                if "ended" in fact.facts and fact.facts.get("id") == self._number:
                    # A daemon that was stopped did not renew it: the steps since are not of what was ordered.
                    raise Ended(f"the agent says that {fact.facts['ended']}; the owner's settings hold")
                self._warned += list_warnings(fact.facts.get("warned"))
            if fact.agent_event is AgentEvent.STOCK:
                sample = read_sample(fact.facts, fact.at.monotonic_s)
                self._switches = self._switches if sample is None else self._switches.after_sample(sample)
        return found

    def _adopt(self, session: Session) -> bool:
        now = self._progress
        if session.confirmed is None or not session.adopted or not session.before_s or not session.after_s:
            return False
        now.samples_before, now.samples_after = 1 / session.before_s, 1 / session.after_s
        if session.settings != self._held:
            answer = self._order(session.settings)
            if answer.get("refused"):
                raise Ended(f"what was proven could not be set again: {answer.get('refused')}")
        now.bottleneck_after = name_of(find_bottlenecks(self._share_out(session.settings)))
        # Kept first: where the daemon is killed in between, nothing holds for good of which `--undo` does not know.
        try:
            self._keep()
        except OSError as error:
            raise Ended(f"what was proven could not be kept: {error}; the owner's settings hold") from error
        # Under a number of its own: the agent answers it, and marks no more steps as those of a tune.
        self._number = next(self._numbers)
        try:
            tuned.write_order(self.folder, self._number, session.settings, until_s=None)
        except OSError as error:
            raise Ended(f"what was proven is kept for the next attempt; this one has none of it: {error}") from error
        return True

    # --- the training ------------------------------------------------------------------------------------------------

    def _read_before(self) -> Before:
        """Return what held last of an earlier tune, to the end of the agent's log."""
        before = Before()
        while facts := self._log.read(self._clock.now()):
            for fact in facts:
                if fact.agent_event is AgentEvent.TUNING and "applied" in fact.facts:
                    before = before.after(fact.facts)
        return before

    def _read_facts(self) -> Facts:
        self._steps.begin()
        answer = self._order({}, facts=True)
        reported = as_dict(answer.get("facts"))
        self._proven_on = {name: reported.get(name) for name in PROVEN_ON}
        return facts_of({**reported, "available_bytes": self._host_memory().available_bytes})

    def _diagnose(self, before: Before, facts: Facts) -> Collected:
        """Return a block of the owner's settings; what was made while others held is none of it."""
        self._switches = Switches(facts=facts)
        drop, ahead, is_cold = before.count_left_over(self._steps.last_step, facts)
        collected = self._collect(drop, is_diagnosed, workers_of({}, facts), ahead, COLD_HALVES if is_cold else 0)
        self._owner_times = collected.times
        self._note_block({}, collected)
        shares = self._share_out({})
        self._progress.bottleneck_before = name_of(find_bottlenecks(shares))
        self._progress.why_before = explain(shares)
        return collected

    def _note_block(self, settings: Mapping[str, object], block: Collected, *, is_run_out: bool = True) -> None:
        self._read_reports()  # of what the loader has made meanwhile
        shown = Shown(
            pace_s=block.pace_s, wait=block.wait, busy=block.busy, batch_s=block.batch_s, is_run_out=is_run_out
        )
        self._switches = self._switches.after_block(settings, shown)

    def _share_out(self, settings: Mapping[str, object]) -> Shares:
        """Return what a step under settings that hold, and of which a block was made, is spent on."""
        traced, shown = self._trace(settings), self._switches.find(settings)
        self._gpu_times = self._gpu_times.after(settings, traced)
        return share_out(None if shown is None else shown.wait, None if shown is None else shown.pace_s, traced)

    def _trace(self, settings: Mapping[str, object]) -> Traced | None:
        """Have some steps traced under settings that hold."""
        return traced_of(self._order(settings, traces=True).get("traced"))

    def _order(self, settings: Mapping[str, object], *, facts: bool = False, traces: bool = False) -> Mapping[str, Any]:
        """Order settings and return the agent's answer to it, with facts or with a trace of some steps."""
        self._number = next(self._numbers)
        self._write(settings, facts=facts, traces=traces)
        limit_s = COMPILING_S if "compile" in settings and "compile" not in self._held else SILENT_S
        began = self._clock.now()
        while True:
            for fact in self._read_reports():
                answers = fact.agent_event is AgentEvent.TUNING and "applied" in fact.facts
                if answers and fact.facts.get("id") == self._number:
                    self._held = dict(settings)
                    step = fact.facts.get("step")
                    self._steps.skip(step if isinstance(step, int) else 0)
                    return fact.facts
            if self._clock.now().seconds_since(began) > limit_s:
                raise Ended("the agent did not answer: the training makes no steps of an optimizer that it follows")
            self._wait(settings, facts=facts, traces=traces)

    def _write(self, settings: Mapping[str, object], *, facts: bool = False, traces: bool = False) -> None:
        until_s = self._clock.now().monotonic_s + LEASE_S
        tuned.write_order(self.folder, self._number, settings, until_s=until_s, facts=facts, traces=traces)
        self._renew_at = until_s - LEASE_S + RENEW_S

    def _wait(self, settings: Mapping[str, object], *, facts: bool = False, traces: bool = False) -> None:
        """Wait a moment, renewing the lease; raise Ended where the training or the tune ended."""
        if self.ended.wait(self.poll_s):
            raise Ended("stopped; the owner's settings hold")
        if self._spent_s() > LONGEST * self._given.for_s:  # its steps are as many as it says, and other jobs wait
            raise Ended(f"not done in {LONGEST} times the time given; the owner's settings hold")
        fault = self._find_fault()
        if fault is not None:
            raise Ended(fault)
        if self._clock.now().monotonic_s > self._renew_at:
            self._write(settings, facts=facts, traces=traces)

    def _collect(
        self,
        drop: int,
        is_enough: Callable[[tuple[float, ...]], bool],
        workers: int = 0,
        ahead: int = 0,
        cold: int = 0,
    ) -> Collected:
        """Return what the steps after the first ones were like.

        Where they wait for their batches those come in turns of all `workers`, of which a block has a whole one. Up to
        `cold` times a first half is left out that new workers made before they delivered steadily; for `drop` and
        `ahead` see `LeadIn`.
        """
        newest, since = self._newest, self._steps.last_step
        pace_s = newest.pace_s if newest is not None and (newest.wait or 0.0) >= WAITING_WORTH else None
        is_switched = 0 < drop <= compare.DROPPED_STEPS and not cold
        lead = LeadIn(
            drop=drop, ahead=ahead, pace_s=pace_s, keeps_up=lambda: self._switches.keeps_up(self._held, since)
        )
        counted = Counted(is_enough=is_enough, workers=workers, cold=cold, is_switched=is_switched)
        block = BlockUnderWay(before=self._steps.last, lead=lead, counted=counted)
        newest_at = self._clock.now()
        while True:
            if self._take_steps(block):
                newest_at = self._clock.now()
            counted.settle()
            self._read_reports()
            if counted.is_complete:
                seen = self._look(block.seen[1:], counted.records, block.began_bytes)
                return block.summarize(seen, self._read_used(), self._steps.last_step)
            if self._clock.now().seconds_since(newest_at) > SILENT_S:
                raise Ended(f"no two steps one after the other for {SILENT_S:.0f} s; the owner's settings hold")
            self._wait(self._held)  # also while steps keep coming: a tune can be ended, and its lease is renewed

    def _take_steps(self, block: BlockUnderWay) -> bool:
        """Take what was made since the last time into a block; return whether any of it could be timed."""
        is_timed = False
        for record in self._steps.read():
            span_s = find_span_s(block.before, record)
            block.before = record
            if span_s is None:
                continue
            is_timed = True
            block.seen.append(record)
            self._progress.made = self._count_made()
            if block.lead.takes(record, span_s):
                continue
            if not block.counted.spans:
                block.began_bytes, block.began_used, block.made = read_rss_bytes(self._steps.pid), self._read_used(), -1
            block.made += 1
            block.counted.add(record, span_s)
            self._progress.per_sample = self._progress.per_sample and bool(record.samples)
            self._progress.steps += 1
        return is_timed

    def _look(self, seen: Sequence[StepRecord], counted: Sequence[StepRecord], began_bytes: int | None) -> Block:
        ended_bytes = read_rss_bytes(self._steps.pid)
        held_bytes = None if began_bytes is None or ended_bytes is None else (began_bytes, ended_bytes)
        return see_steps(seen, counted, self._host_memory().available_bytes, held_bytes)

    def _find_memory(self, facts: Facts) -> Memory:
        return Memory(card_bytes=facts.card_bytes, host_bytes=self._host_memory().total_bytes)

    def _read_used(self) -> Used | None:
        return read_used(self._steps.pid, self._clock.now())

    def _count_made(self) -> int:
        return max(0, self._steps.last_step - self._first_step)

    def _spent_s(self) -> float:
        return self._clock.now().seconds_since(self._began)
