"""Probes a job's own command at one micro-batch after the other, from a process that has loaded it once.

The agent forks that process for each probe (`rocm_agent/memory/serving.py`), and has it import of torch and of other
packages only what is used (`rocm_agent/memory/lean_torch.py`, `lean_imports.py`) until a probe fails that does not fail
alone. A command that cannot be forked, or whose fork fails with all imports too, is probed by a process each from then
on, and why is known.
"""

from __future__ import annotations

import json
import os
import shutil
import time
from dataclasses import replace
from pathlib import Path
from types import TracebackType

from supervisor import untrusted_files
from supervisor.children.child import Child
from supervisor.core import attempt_files as names
from supervisor.runner import memory_probe
from supervisor.runner.attempt_folder import make_attempt_folder, write_atomically
from supervisor.runner.code_copy import INSTALLED, Code
from supervisor.runner.memory_probe import Command, Result, WhatIf
from supervisor.runner.shim_files import Recorder

REPORT = f"{names.RUN}/memory-%d.json"
REQUEST = f"{names.RUN}/probe-%d.json"
FORKED = f"{names.RUN}/forked"
"""Is there once the command has been forked."""
CHEAP = 0.28
"""A micro-batch is tried after other steps first, before a new fork, where that takes so much less than a new one.

Of networks for images, whose first probe takes a second, it costs as much as it may save: nearly all tried there run.
"""

REHEARSAL_S = 0.6
"""A rehearsal that takes longer is the last: a proof takes no more than twice that, and most that is tried so runs."""


class LoadedProbe:
    """A command under probes. Each has the command's time limit; one that exceeds it is killed with all forks."""

    def __init__(self, command: Command, code: Code = INSTALLED, *, rehearsal_limit_s: float = REHEARSAL_S) -> None:
        self._command, self._code, self._rehearsal_limit_s = command, code, rehearsal_limit_s
        self._scratch: Path | None = None
        self._process: Child | None = None
        self._number = 0
        self._discarded = True
        self._lean = True
        """Whether of torch and other packages only what is used is imported."""
        self._began_s = 0.0
        """What the first fork took until it had its first batch: a new one takes as much."""
        self._took_s: list[float] = []
        """What each probe took that made its steps in a process that was loaded before, but for proofs."""
        self._rehearsal_s: float | None = None
        """What the last rehearsal took; None: there was none."""
        self._why_computed = ""
        self._repeats = False
        """Whether a step may have the batch of an earlier one: the batches of the training were seen to be alike."""
        self._composes = False
        """Whether a batch may be put together from samples of earlier ones: they were seen to differ."""
        self.why_alone = ""
        """Why each probe has a process of its own; empty: it has not."""

    def __enter__(self) -> LoadedProbe:
        """Return itself: nothing is started before the first probe."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """End all processes."""
        self.end()

    def probe(self, what_if: WhatIf, *, fresh: bool = False, proof: bool = False) -> Result:
        """Return what the command took, from a new fork if `fresh`; raise OSError where its folder cannot be made.

        What fails in a fork is tried again as if there were none: in a new fork where it followed other probes, then
        alone. Running out of memory is a result, unless it followed other probes: what those left may be the cause.
        With `proof` it is one then too, where it costs little; what runs there is run in a new fork as well. A training
        that begins with this micro-batch makes its optimizer's state among its activations, and may find no room for
        what a process could join whose state was made by smaller steps: a T5 ran there at 15 samples, and by itself
        at 13.
        """
        if self._why_computed:
            what_if = replace(what_if, computes=True)
        what_if = replace(what_if, traces=not proof)
        result = self._probe_once(what_if, fresh=fresh, proof=proof)
        if memory_probe.fails_without_values(result, what_if) and not what_if.computes:
            self._why_computed = result.problem
            result = self._probe_once(replace(what_if, computes=True), fresh=True, proof=proof)
        return replace(result, why_computed=result.why_computed or self._why_computed)

    def _probe_once(self, what_if: WhatIf, *, fresh: bool, proof: bool) -> Result:
        if self.why_alone:
            return memory_probe.probe(self._command, what_if, self._code)
        began_s = time.perf_counter()
        result = self._ask(what_if, fresh=fresh or (proof and not self._runs_further_first()))
        if memory_probe.fails_without_values(result, what_if):
            return result
        took_s = time.perf_counter() - began_s
        if what_if.look and result.way == "forked":
            self._began_s = max(0.0, took_s - (result.loaded_s or took_s))
        if result.way == "further" and result.point is not None and not proof:
            self._took_s.append(took_s)
        followed = what_if.batch in {None, result.batch}
        ended = result.out_of_memory if proof else followed and _is_answer(result, what_if)
        if result.way == "further" and not ended:
            result = self._ask(what_if, fresh=True)
        answered = result.out_of_memory or _is_answer(result, what_if)
        may_lack = self._lean and result.why_alone != ""
        if answered or (result.way == "alone" and not may_lack):
            if result.way == "alone":
                self.why_alone = result.why_alone
                self.end()
            return result
        return self._probe_alone(what_if, result.problem)

    def rehearse(self, what_if: WhatIf) -> bool | None:
        """Return whether a micro-batch runs in a process that has made other steps and forgets them.

        None: that would take as much as a proof, or is not to be known so. A larger one may be rehearsed after one that
        runs; one that does not ends the process. What is proven later is run in a new fork at once.
        """
        if self.why_alone or len(self._took_s) < 2 or not self._is_further_cheap():
            return None
        if self._rehearsal_s is not None and self._rehearsal_s > self._rehearsal_limit_s:
            return None
        began_s = time.perf_counter()
        result = self._ask(replace(what_if, forgets=True, traces=False), fresh=False)
        self._rehearsal_s = time.perf_counter() - began_s
        ended = result.out_of_memory or result.point is not None
        is_known = ended and result.way == "further" and result.batch == what_if.batch
        return not result.out_of_memory if is_known else None

    def _runs_further_first(self) -> bool:
        """Whether a proof is run after other steps before it is run by itself: where nothing was rehearsed."""
        return self._rehearsal_s is None and self._is_further_cheap()

    def _is_further_cheap(self) -> bool:
        """Whether a further micro-batch takes little in a process that made steps with others, or it is not known."""
        return len(self._took_s) < 2 or self._took_s[-1] < CHEAP * (self._began_s + self._took_s[0])

    def _probe_alone(self, what_if: WhatIf, problem: str) -> Result:
        """Probe what has failed in a fork; where it runs alone, find out which of both ways was the cause."""
        self.end()
        alone = memory_probe.probe(self._command, what_if, self._code)
        if _is_answer(alone, what_if):
            if not self._lean:
                self.why_alone = f"what ran alone failed in a fork of the loaded command: {problem}"
            self._lean = False
        return alone

    def end(self) -> None:
        """Kill what is left of the command; a later probe loads it again."""
        process, self._process = self._process, None
        if process is not None:
            memory_probe.end_process(process)
        scratch, self._scratch = self._scratch, None
        if scratch is not None:
            shutil.rmtree(scratch, ignore_errors=True)

    def _ask(self, what_if: WhatIf, *, fresh: bool) -> Result:
        if self._process is not None and self._process.poll() is not None:
            self.end()
        if self._process is None:
            return self._load(what_if)
        folder = self._folder()
        self._number += 1
        changed = replace(what_if, repeats=self._repeats, composes=self._composes)
        request = memory_probe.describe_request(changed, folder / (REPORT % self._number))
        content = json.dumps({**request, "fresh": fresh})
        write_atomically(folder / (REQUEST % self._number), content, 0o600)
        return self._wait(self._process)

    def _load(self, what_if: WhatIf) -> Result:
        """Start the command with a first request."""
        self._scratch, self._number = memory_probe.make_scratch_folder(), 0
        folder = self._folder()
        make_attempt_folder(folder, None)
        problem = Recorder(str(folder)).make()
        if problem is not None:
            return Result(point=None, problem=problem)
        discards = self._discarded
        argv = memory_probe.discard_writes(self._command, self._scratch) if discards else list(self._command.argv)
        request = {
            **memory_probe.describe_request(what_if, folder / (REPORT % 0)),
            "requests": str(folder / REQUEST),
            "reports": str(folder / REPORT),
            "forked": str(folder / FORKED),
            "lean": self._lean,
            "guard": not discards or os.geteuid() != 0,
        }
        env = memory_probe.build_env(self._command, request, folder, self._code, without_gpu=what_if.without_gpu)
        try:
            self._process = memory_probe.start_process(argv, env, self._command, folder)
        except OSError as error:
            return Result(point=None, problem=f"{error.filename}: {error.strerror}")
        result = self._wait(self._process)
        if discards and result.problem.endswith(f"({memory_probe.CANNOT_DISCARD})"):
            self._discarded = False
            self.end()
            return self._load(what_if)
        return result

    def _wait(self, process: Child) -> Result:
        folder, report = self._folder(), REPORT % self._number
        ending = memory_probe.wait_for_report(process, folder, report, self._command.limit_s)
        result = memory_probe.read_result(folder, ending, discarded=self._discarded, name=report)
        if ending != "reported" and not untrusted_files.exists(folder, report):
            forked = untrusted_files.exists(folder, FORKED)
            result = replace(result, way="forked" if forked else "alone", why_alone="")
            self.end()
        self._learn_shapes(result)
        return result

    def _learn_shapes(self, result: Result) -> None:
        """Have further batches be spared where they take long: of a CPU tensors are counted as they are drawn."""
        if result.alike is not None:
            self._repeats = result.on_gpu and result.alike
            self._composes = result.on_gpu and not result.alike

    def _folder(self) -> Path:
        assert self._scratch is not None
        return self._scratch / "probe"


def _is_answer(result: Result, what_if: WhatIf) -> bool:
    """Whether a probe came to its end: a look by its first batch, others by a point or by times."""
    return result.point is not None or bool(result.timing) or (what_if.look and result.batch is not None)
