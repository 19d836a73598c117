"""Reads how much of the first NVIDIA card is taken, many times a second, on its own and not through the daemon."""

from __future__ import annotations

import importlib
import threading
import time


class GpuMemory(threading.Thread):
    """Samples from `start` until `end`; needs the package nvidia-ml-py."""

    def __init__(self, every_s: float = 0.02) -> None:
        super().__init__(name="card-memory", daemon=True)
        self._nvml = importlib.import_module("pynvml")
        self._nvml.nvmlInit()
        self._card = self._nvml.nvmlDeviceGetHandleByIndex(0)
        self._every_s = every_s
        self._over = threading.Event()
        self.samples: list[tuple[float, int]] = []
        """(Unix seconds, bytes), oldest first."""

    def run(self) -> None:
        """Sample."""
        while not self._over.is_set():
            used = int(self._nvml.nvmlDeviceGetMemoryInfo(self._card).used)
            self.samples.append((time.time(), used))  # noqa: TID251 - compared with the record's times
            self._over.wait(self._every_s)

    def end(self) -> None:
        """Sample no more."""
        self._over.set()
        self.join()

    def before(self, unix_s: float) -> int | None:
        """Return what was taken at the last sample before a time; None where there is none."""
        return next((used for at_s, used in reversed(self.samples) if at_s < unix_s), None)

    def most(self, since_s: float, until_s: float) -> int:
        """Return the most that was taken in a time."""
        return max((used for at_s, used in self.samples if since_s <= at_s <= until_s), default=0)
