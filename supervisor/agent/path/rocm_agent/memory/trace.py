"""The blocks that a training takes from the allocator of its GPU and returns, in their order, as torch records them.

By them what the allocator would hold at another micro-batch is reckoned (`supervisor/core/memory/traces.py`).
"""

from __future__ import annotations

from functools import wraps
from typing import Any, Dict, List, Optional

from rocm_agent.fence import fenced

BLOCK_BYTES = 512
"""CUDA's and HIP's allocator hands out multiples of this, in units of which sizes are given."""
MOST_EVENTS = 120_000
"""A training with more has no trace: a report is bounded."""


class CountedTrace:
    """What an account of tensors has seen in this process, or since the last request that made steps."""

    def __init__(self) -> None:
        self._account: Any = None
        self._is_whole = True
        self._first_event = 0
        self._before = 0
        """Blocks that were taken before it."""
        self._marks: List[int] = []

    def follow(self, account: Any) -> None:
        """Begin with an account."""
        self._account = account

    def begin(self, *, wanted: bool) -> None:
        """Begin with a request, whether a trace is wanted or not: the account is kept for its sums in any case."""
        if self._account is not None and len(self._marks) > 1:
            self._first_event, self._before = len(self._account.events), self._account.taken
            self._is_whole, self._marks = False, []

    def mark_first(self) -> None:
        """Note that a batch was drawn before which no step was made; of several it is the last that counts."""
        self._marks = []
        self.mark()

    def mark(self) -> None:
        """Note that a step was made."""
        if self._account is not None:
            self._marks.append(self._account.taken - self._before)

    def describe(self) -> Optional[Dict[str, Any]]:
        """Return blocks as `Trace` does."""
        if self._account is None:
            return None
        found = self._account.events[self._first_event :]
        events = [event if event > 0 else event + self._before for event in found if event > 0 or -event > self._before]
        if len(events) > MOST_EVENTS:
            return None
        return {"events": events, "marks": self._marks, "whole": self._is_whole}


class Trace:
    """What was recorded in this process since `begin`, or since the GPU was first used."""

    def __init__(self, torch: Any) -> None:
        self._torch = torch
        self._is_wanted = False
        self._is_recording = False
        self._is_whole = False
        """Whether it has all that the process has taken."""
        self._before = 0
        """Blocks that were taken before it."""
        self._marks: List[int] = []

    def install(self) -> None:
        """Record from the first use of the GPU on, where that is wanted by then."""
        cuda = self._torch.cuda
        original = getattr(cuda, "_lazy_init", None)
        if original is None:
            return

        @wraps(original)
        def lazy_init() -> Any:
            result = original()
            if self._is_wanted and not self._is_recording:
                fenced(self._record)()
                self._is_whole = self._is_recording
            return result

        cuda._lazy_init = lazy_init

    def begin(self, *, wanted: bool) -> None:
        """Begin with a request; what was recorded for an earlier one is left out, but for a look's.

        Recording goes on: where it was ended for each request, the next steps of a T5 took 8 s on an H200.
        """
        self._is_wanted = wanted
        if self._is_recording and len(self._marks) > 1:
            self._before, self._marks, self._is_whole = self._count_taken(), [], False
        elif wanted and not self._is_recording and self._torch.cuda.is_initialized():
            self._record()

    def mark_first(self) -> None:
        """Note that a batch was drawn before which no step was made; of several it is the last that counts."""
        self._marks = []
        self.mark()

    def mark(self) -> None:
        """Note that a step was made."""
        if self._is_recording:
            self._marks.append(self._count_taken() - self._before)

    def describe(self) -> Optional[Dict[str, Any]]:
        """Return blocks in units, and less than zero what was returned, by its number from 1 on; None: no trace."""
        if not self._is_recording or not self._is_wanted:
            return None
        entries = self._torch.cuda.memory._snapshot()["device_traces"][self._torch.cuda.current_device()]
        earlier = sum(entry["action"] == "alloc" for entry in entries) - self._count_taken() + self._before
        if earlier < 0 or len(entries) > 4 * MOST_EVENTS:
            return None
        events: List[int] = []
        numbers: Dict[int, int] = {}
        taken = 0
        for entry in entries:
            if entry["action"] == "alloc":
                if earlier:
                    earlier -= 1
                    continue
                taken += 1
                numbers[entry["addr"]] = taken
                events.append(max(1, -(-entry["size"] // BLOCK_BYTES)))
            elif entry["action"] == "free_completed" and entry["addr"] in numbers:
                events.append(-numbers.pop(entry["addr"]))
        if len(events) > MOST_EVENTS:
            return None
        return {"events": events, "marks": self._marks, "whole": self._is_whole}

    def _record(self) -> None:
        if not hasattr(self._torch.cuda.memory, "_record_memory_history"):  # before torch 2
            return
        self._before = self._count_taken()
        self._torch.cuda.memory._record_memory_history(
            enabled="all", context=None, stacks="python", max_entries=4 * MOST_EVENTS
        )
        self._is_recording = True

    def _count_taken(self) -> int:
        return int(self._torch.cuda.memory_stats().get("allocation.all.allocated", 0))
