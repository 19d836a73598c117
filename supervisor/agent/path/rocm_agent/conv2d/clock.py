"""Measures the device time of a pass, and the host time that it takes to launch it."""

from __future__ import annotations

import time
from typing import Any, Callable

import torch

CYCLES_A_MS = 2_000_000
"""Of the kernel that fills a GPU's queue; a GPU's clock may be slower, which fills it for longer."""
FILLED_MS = (0.3, 20.0)
"""The least and the most that a queue is filled for."""
HOST = 1.3
"""Times what handing work over costs in a training, with all else that its process does, as against here.

Twice as much chose what is quick to ask for and slow to run, also where a step waits for the device.
"""


class Watch:
    """The cost of one pass: the smallest of the runs so far."""

    def __init__(self, work: Callable[[], Any], device: torch.device, share: float, *, by_sample: bool) -> None:
        """Take `work`, which has run before, on `share` of the batch; `by_sample`: it has launches of each sample."""
        self._work = work
        self._device = device
        self._share = share
        self._host_share = share if by_sample else 1.0
        self._device_ms = self._host_ms = float("inf")

    @property
    def ms(self) -> float:
        """Return the cost in milliseconds, for the entire batch.

        On a GPU the larger of two: what the device takes behind a filled queue, and what the process takes to hand the
        work over. Where a training waits for the device the first is what it pays, where it waits for launches the
        second.
        """
        if self._device.type != "cuda":
            return self._host_ms / self._share
        return max(self._device_ms / self._share, HOST * self._host_ms / self._host_share)

    def run(self) -> float:
        """Run once more and return the cost."""
        if self._device.type == "cuda":
            with torch.cuda.device(self._device):
                self._run_on_gpu()
        else:
            began = time.thread_time()  # what else runs on the processors shall choose nothing
            self._work()
            self._host_ms = min(self._host_ms, (time.thread_time() - began) * 1e3)
        return self.ms

    def _run_on_gpu(self) -> None:
        torch.cuda.synchronize()
        if self._host_ms == float("inf"):
            self._host_ms = self._time_request(None)
            torch.cuda.synchronize()
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        _fill_queue(min(max(1.5 * self._host_ms, FILLED_MS[0]), FILLED_MS[1]))
        begin.record()
        self._host_ms = min(self._host_ms, self._time_request(end))
        end.synchronize()
        self._device_ms = min(self._device_ms, float(begin.elapsed_time(end)))

    def _time_request(self, end: Any) -> float:
        """Hand the work over and return the milliseconds that took; `end` is recorded while its result still lives."""
        began = time.perf_counter()
        result = self._work()
        asked_ms = (time.perf_counter() - began) * 1e3
        if end is not None:
            end.record()
        del result
        return asked_ms


def _fill_queue(duration_ms: float) -> None:
    """Give the device something to do meanwhile, where this PyTorch has it: then events time the device alone."""
    sleep = getattr(torch.cuda, "_sleep", None)
    if sleep is not None:
        sleep(int(duration_ms * CYCLES_A_MS))
