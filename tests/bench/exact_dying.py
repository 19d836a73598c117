"""Ends its own process by SIGKILL, between two batches and once a snapshot of it lies on the disk."""

import os
import signal
import time
from pathlib import Path


class Dying:
    """To be asked after every batch; `after` 0 means never."""

    def __init__(self, after):
        self._after, self._made = after, 0
        self._before = self._there() if after else set()

    @staticmethod
    def _there():
        return {one.name for one in Path(os.environ["ROCM_SUPERVISOR_SNAPSHOTS"]).glob("step-*.pt")}

    def batch(self):
        """A batch was made."""
        self._made += 1
        if not self._after:
            return
        time.sleep(0.03)
        if self._made >= self._after and self._there() - self._before:
            os.kill(os.getpid(), signal.SIGKILL)
