"""What must be true of a training that was wounded and came back, asked of the record, the evidence and the card."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

from gpu_memory import GpuMemory
from house import House

MORE_BYTES = 256 << 20
"""What the card may hold more than before the first attempt, when the next one is started."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Must:
    """What is to be found: a rule with its class, and the remedy that answers it."""

    found: frozenset[tuple[str, str | None]]
    remedies: frozenset[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One question and its answer."""

    name: str
    met: bool
    words: str


@dataclass(slots=True, kw_only=True)
class Reported:
    """One wounded training and everything that was told of it."""

    house: House
    job: str
    wound: str
    must: Must
    every_s: float
    """Between two snapshots."""
    card: GpuMemory | None
    checks: list[Check] = field(default_factory=list)

    @property
    def folder(self) -> Path:
        """The training's own folder."""
        return self.house.folder / self.job

    def struck_s(self) -> float:
        """Return the Unix time at which it struck; raises FileNotFoundError where it never did."""
        return float((self.folder / "struck").read_text())


def checks(reported: Reported) -> Iterator[Check]:
    """Ask everything of a job that is over."""
    incidents = reported.house.incidents(reported.job)
    job = reported.house.job(reported.job)
    if not incidents:
        yield Check(name="found", met=False, words=f"no incident; it is {job['phase']}{_tail(reported)}")
        return
    first = incidents[0]
    yield _found(reported, first)
    yield _evidence(reported, first)
    yield from _resumed(reported, first)
    if reported.card is not None:
        yield _freed(reported, reported.card)
    yield from _remedy(reported, incidents)
    done = (reported.folder / "done").exists()
    words = f"{job['phase']} in attempt {job['attempt']}" + ("" if done else _tail(reported))
    yield Check(name="finished", met=done and job["phase"] == "finished", words=words)


def _tail(reported: Reported) -> str:
    """Return the end of what each attempt printed."""
    outputs = sorted(reported.house.state.glob(f"jobs/{reported.job}/[0-9]/run/output.log"))
    return "".join(
        f"\n--- attempt {output.parent.name}\n{output.read_text(errors='replace')[-1200:]}" for output in outputs
    )


def _found(reported: Reported, first: dict[str, Any]) -> Check:
    seen, after_s = (first["rule"], first["fault"]), first["at"] - reported.struck_s()
    name = f"{first['rule']} ({first['fault']})" if first["fault"] else first["rule"]
    met = seen in reported.must.found and after_s >= 0
    return Check(name="found", met=met, words=f"{name} after {after_s:.1f} s: {first['message'][:120]}")


def _evidence(reported: Reported, first: dict[str, Any]) -> Check:
    """Whether what is needed in the morning lies there: steps, output, kernel log, and on a card its readings."""
    folder = Path(first["evidence"] or "/nonexistent")
    there = {path.name for path in folder.iterdir()} if folder.is_dir() else set()
    needed = {"records.jsonl", "output.txt", "kernel.txt"} | ({"gpus.jsonl"} if reported.card is not None else set())
    missing = sorted(needed - there)
    readings = rows(folder / "gpus.jsonl")
    if reported.card is not None and not any(reading.get("vram_used_bytes") for reading in readings):
        missing.append("the card's memory among its readings")
    if reported.wound == "spin" and not any(item.startswith("stacks") for item in there):
        missing.append("stacks")
    kernel = (folder / "kernel.txt").read_text().splitlines() if "kernel.txt" in there else []
    words = f"{len(there)} files, {len(readings)} readings of the card, {len(kernel)} lines of the kernel"
    words += f" ({kernel[-1].strip()[:100]})" if kernel else ""
    return Check(name="evidence", met=not missing, words=words if not missing else f"missing: {', '.join(missing)}")


def _resumed(reported: Reported, first: dict[str, Any]) -> Iterator[Check]:
    used = first["resumed_from"]
    if used is None:
        yield Check(name="resumed", met=False, words=f"from no checkpoint; {first['outcome']}, {first['reason']}")
        return
    asked = "SELECT verdict FROM checkpoints WHERE job = ? AND path = ? AND step = ?"
    verdicts = {verdict for (verdict,) in reported.house.query(asked, reported.job, used["path"], used["step"])}
    yield Check(
        name="proven", met=verdicts == {"proven"}, words=f"step {used['step']} ({Path(used['path']).name}): {verdicts}"
    )
    yield _lost(reported, first, used["step"])


def _lost(reported: Reported, first: dict[str, Any], resumed_step: int) -> Check:
    """Whether the work between the state that was resumed from and the wound is at most an interval and a step."""
    at_s = {row["step"]: row["at"]["unix_s"] for row in rows(Path(first["evidence"]) / "records.jsonl")}
    before = [step for step in sorted(at_s) if at_s[step] <= reported.struck_s()]
    if resumed_step not in at_s or not before:
        return Check(name="lost", met=False, words=f"step {resumed_step} is not among the steps of the evidence")
    inside = [earlier for earlier in before if earlier > resumed_step]
    last = inside[-1] if inside else resumed_step
    step_s = max((at_s[item] - at_s[item - 1] for item in inside if item - 1 in at_s), default=0.0)
    lost_s = at_s[last] - at_s[resumed_step]
    words = (
        f"{last - resumed_step} steps, {lost_s:.2f} s of work (interval {reported.every_s:g} s, a step {step_s:.2f} s)"
    )
    return Check(name="lost", met=lost_s <= reported.every_s + step_s, words=words)


def _freed(reported: Reported, card: GpuMemory) -> Check:
    """Whether the card was free of every attempt before the next was started (law 7), by readings of our own."""
    asked = "SELECT launched_unix_s FROM attempts WHERE job = ? ORDER BY number"
    launched = [at_s for (at_s,) in reported.house.query(asked, reported.job)]
    base = card.before(launched[0]) or 0
    lines = []
    for number, (began_s, next_s) in enumerate(pairwise(launched), 2):
        held, left = card.most(began_s, next_s) - base, (card.before(next_s) or 0) - base
        lines.append((left, f"{held / 1e9:.1f} GB held, {left / 1e9:.2f} GB left when attempt {number} began"))
    met = bool(lines) and all(left <= MORE_BYTES for left, _ in lines)
    return Check(name="freed", met=met, words="; ".join(words for _, words in lines) or "there was one attempt")


def _remedy(reported: Reported, incidents: list[dict[str, Any]]) -> Iterator[Check]:
    taken = [incident["remedy"] for incident in incidents]
    made = json.loads(reported.house.ctl("remedies", reported.job, "--json").stdout)
    report = [f"{item['remedy']}: {item['said']}" for item in made["in_force"]]
    met = bool(taken) and set(taken) <= reported.must.remedies
    yield Check(
        name="remedy", met=met, words=f"{', '.join(map(str, taken))}; in force: {'; '.join(report) or 'nothing'}"
    )
    if reported.wound == "oom":
        pairs = _batches(reported)
        met = len(pairs) > 1 and pairs[0][0] == 2 * pairs[1][0] and 2 * pairs[0][1] == pairs[1][1]
        words = " -> ".join(f"batch {batch}, accumulated {times} times" for batch, times in pairs)
        yield Check(name="batch", met=met, words=words)


def _batches(reported: Reported) -> list[tuple[int, int]]:
    """Return batch and accumulation of each attempt, as the training itself printed them."""
    found = []
    for output in sorted(reported.house.state.glob(f"jobs/{reported.job}/[0-9]/run/output.log")):
        lines = [line.split() for line in output.read_text(errors="replace").splitlines() if line.startswith("batch ")]
        found += [(int(line[1]), int(line[3])) for line in lines[:1]]
    return found


def rows(file: Path) -> list[dict[str, Any]]:
    """Return the rows of a file of JSON lines, none where there is no such file."""
    try:
        return [json.loads(line) for line in file.read_text().splitlines()]
    except FileNotFoundError:
        return []
