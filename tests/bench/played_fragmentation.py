"""A card's memory falls to pieces where there is no card: the allocator's words are made up, the rules are real."""

from __future__ import annotations

import random
from collections.abc import Iterator

from supervisor.core import events as ev
from supervisor.core.flags import Severity
from supervisor.core.moments import Moment
from supervisor.core.readings import Stage, StepRecord
from supervisor.core.rules import RULES
from supervisor.replay.engine import Fired, replay
from supervisor.replay.recording import Recording

GB = 10**9
TOTAL = 20 * GB
LAUNCH = Moment(1000.0, 1_763_000_000.0)
REPORTED_EVERY_S = 2


def _output(at: Moment, reserved: int, allocated: int, retries: int) -> ev.AgentReported:
    facts: dict[str, object] = {
        "reserved_bytes": reserved, "allocated_bytes": allocated, "retries": retries, "total_bytes": TOTAL,
        "inactive_split_bytes": max(0, reserved - allocated - GB // 2), "ooms": 0,
    }  # fmt: skip
    return ev.AgentReported(
        at=at, job="pieces", attempt=1, agent_event=ev.AgentEvent.ALLOCATOR, facts=facts, pid=11, rank=0
    )


def _words(chance: random.Random, strikes_s: int) -> Iterator[ev.Event]:
    yield ev.StageEntered(at=LAUNCH.plus(0.5), job="pieces", attempt=1, stage=Stage.STEP)
    reserved, allocated, retries = 14 * GB, 13 * GB, 0
    for second in range(REPORTED_EVERY_S, strikes_s + 120, REPORTED_EVERY_S):
        if second >= strikes_s:
            reserved = min(TOTAL - GB // 2, reserved + chance.randint(GB // 2, GB))
            # It tries again only once the card is taken.
            retries += chance.randint(0, 3) if reserved >= TOTAL - GB else 0
        yield _output(LAUNCH.plus(second), reserved, allocated + chance.randint(-GB, GB), retries)


def fragmentation(chance: random.Random) -> tuple[float, Fired | None]:
    """Play one; return the second at which it began, and the first flag that is more than `info`."""
    strikes_s = chance.randint(60, 600)
    steps = tuple(
        StepRecord(at=LAUNCH.plus(1 + number / 18), step=number + 1, loss=1.0, gpu_memory_bytes=13 * GB)
        for number in range(18 * (strikes_s + 120))
    )
    recording = Recording(
        job="pieces", attempt=1, launched_at=LAUNCH, facts=list(_words(chance, strikes_s)), steps=steps
    )
    fired = (item for item in replay(recording, [rule() for rule in RULES]) if item.flag.severity is not Severity.INFO)
    return float(strikes_s), next(fired, None)
