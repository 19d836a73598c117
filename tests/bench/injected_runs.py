"""What came of each injection: kept in a file as soon as it is known, judged against its fault, and printed."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from injected_faults import BY_NAME, FAULTS, Fault

from supervisor.core.stats.median import median

BEYOND_S = 0.5
"""What a fault may take to be found, beyond the limit in force."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Output:
    """The first that was said of a job."""

    at_s: float
    rule: str
    fault: str | None
    message: str
    ended_s: float | None = None
    """Unix time at which its process was gone; None while it was there."""
    then_s: float | None = None
    """Unix time of the crash that it foretold."""


@dataclass(slots=True, kw_only=True)
class Run:
    """One training with its fault."""

    fault: Fault
    job: str
    at_step: int
    device: str = "cpu"
    struck_s: float | None = None
    """Unix time of the injection."""
    began_s: float = 0.0
    over: bool = False
    output: Output | None = None

    @property
    def limit_s(self) -> float:
        """Unix time after which it is missed."""
        return (self.struck_s or self.began_s + 600) + self.fault.wait_s

    def right(self) -> bool:
        """Whether it was said after the injection, by the rule, as the class, in the words that it must be."""
        output, fault = self.output, self.fault
        if output is None or self.struck_s is None or output.at_s < self.struck_s:
            return False
        if (output.rule, output.fault) != (fault.rule, fault.fault) or not re.search(fault.says, output.message):
            return False
        return fault.foretells is None or (output.then_s is not None and output.then_s > output.at_s)

    def after_s(self) -> float:
        """Return how long after the injection it was said."""
        assert self.output is not None
        assert self.struck_s is not None
        return self.output.at_s - self.struck_s

    def beyond_s(self) -> float:
        """Return how long it took to find, without what nobody can know sooner."""
        assert self.output is not None
        ended_s = self.output.ended_s if self.fault.rule == "crash" else None
        return (self.after_s() if ended_s is None else self.output.at_s - ended_s) - (self.fault.limit_s or 0.0)


@dataclass(slots=True, kw_only=True)
class Played:
    """One fault that was played through the rules, for want of what it needs."""

    fault: str
    why: str
    runs: int
    after_s: list[float]
    """Of those that were found rightly."""


@dataclass(slots=True)
class Results:
    """All that came of an invocation, or of several."""

    runs: list[Run] = field(default_factory=list)
    """Those that are over."""
    played: list[Played] = field(default_factory=list)

    def write(self, file: Path | None) -> None:
        """Write them whole or not at all."""
        if file is None:
            return
        rows = [{**_plain(run), "fault": run.fault.name} for run in self.runs]
        draft = file.with_name(f"{file.name}.part")
        draft.write_text(json.dumps({"version": 1, "runs": rows, "played": [asdict(item) for item in self.played]}))
        draft.rename(file)

    def add(self, file: Path) -> None:
        """Take in what another invocation wrote."""
        found: dict[str, Any] = json.loads(file.read_text())
        for row in found["runs"]:
            output = None if row["output"] is None else Output(**row["output"])
            self.runs.append(Run(**{**row, "fault": BY_NAME[row["fault"]], "output": output, "over": True}))
        self.played += [Played(**item) for item in found["played"]]

    def report(self, least: int) -> bool:
        """Print the table; return whether every fault was met in `least` runs, all found, rightly and in time."""
        say(f"{'fault':<17} {'must be':<28} {'on':<5} runs found right {'median s':>8} {'worst s':>8}  beyond")
        met: list[bool] = []
        for fault in FAULTS:
            mine = [run for run in self.runs if run.fault is fault]
            met += [_line(fault, mine, least)] if mine else []
        met += [_played_line(item, least) for item in self.played]
        missing = {fault.name for fault in FAULTS} - {run.fault.name for run in self.runs}
        missing -= {item.fault for item in self.played}
        say(f"\n{sum(met)} of {len(met)} faults met: {least} runs, all found, each in its class, at most {BEYOND_S} s")
        say("beyond the limit in force, or beyond the end of the process where it crashed")
        if missing:
            say(f"not run: {', '.join(sorted(missing))}")
        return all(met)


def say(line: str) -> None:
    """Print it now."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def _plain(run: Run) -> dict[str, Any]:
    return {
        name: getattr(run, name) if name != "output" or run.output is None else asdict(run.output)
        for name in ("job", "at_step", "device", "struck_s", "began_s", "output")
    }


def _times(after_s: Iterable[float]) -> str:
    ordered = sorted(after_s)
    return f"{median(ordered):8.2f} {ordered[-1]:8.2f}" if ordered else f"{'-':>8} {'-':>8}"


def _line(fault: Fault, runs: list[Run], least: int) -> bool:
    """Print the line of a fault and what was wrong with it; return whether it was met."""
    found = [run for run in runs if run.output is not None]
    rightly = [run for run in found if run.right()]
    late_s = max((run.beyond_s() for run in rightly), default=0.0)
    met = len(runs) >= least and len(rightly) == len(runs) and (fault.limit_s is None or late_s <= BEYOND_S)
    beyond = f"{late_s:7.2f}" if rightly and fault.limit_s is not None else f"{'-':>7}"
    name = f"{fault.rule} ({fault.fault})" if fault.fault else fault.rule
    where = "/".join(sorted({run.device for run in runs}))
    reported = _foretold(fault, rightly)
    say(
        f"{fault.name:<17} {name:<28} {where:<5} {len(runs):4} {len(found):5} {len(rightly):5} "
        f"{_times(run.after_s() for run in rightly)} {beyond}  {'met' if met else 'NOT MET'}{reported}"
    )
    for run in runs:
        if run not in rightly:
            say(f"    {run.job}, step {run.at_step}: {run.output or 'nothing was said'}; struck at {run.struck_s}")
    return met


def _foretold(fault: Fault, rightly: list[Run]) -> str:
    ahead = sorted(
        run.output.then_s - run.output.at_s for run in rightly if run.output and run.output.then_s is not None
    )
    return f" ({fault.foretells} came {ahead[0]:.1f} to {ahead[-1]:.1f} s later)" if ahead else ""


def _played_line(played: Played, least: int) -> bool:
    right = len(played.after_s)
    met = played.runs >= least and right == played.runs and min(played.after_s) >= 0
    say(
        f"{played.fault:<17} {played.fault:<28} {'-':<5} {played.runs:4} {right:5} {right:5} {_times(played.after_s)} "
        f"{'-':>7}  {'met' if met else 'NOT MET'} ({played.why})"
    )
    return met
