"""What wounded_loop.py and wounded_yolo.py do to themselves, once, in their first attempt, and note when."""

import ctypes
import os
import signal
import time
from pathlib import Path

import torch

KINDS = ("oom", "spin", "illegal", "sigkill", "nan")
OOM = getattr(torch.cuda, "OutOfMemoryError", RuntimeError)
BALLAST_BYTES = 8 << 30
"""Held on the card all the time, so that it shows when the memory of a dead process is free again."""


class Wound:
    """One of KINDS, at a step, on a device."""

    def __init__(self, kind, at, device, folder):
        self.kind, self.at, self.device = kind, at, device
        self.card = device.startswith("cuda")
        self.first = os.environ.get("ROCM_SUPERVISOR_ATTEMPT", "1") == "1"
        self._note = Path(folder, "struck")
        self._ballast = None
        if self.card and kind != "oom":
            self._ballast = torch.zeros(BALLAST_BYTES, dtype=torch.uint8, device=device)

    def note(self):
        """Write down when it first strikes, whole or not at all."""
        if self._note.exists():
            return
        part = self._note.with_suffix(".part")
        part.write_text(repr(time.time()))
        part.rename(self._note)

    def strikes(self, step):
        """Whether it is to strike before this step."""
        return self.first and step == self.at

    def strike(self):
        """Do what ends or stops a process; memory and numbers are the training's own to spoil."""
        self.note()
        if self.kind == "sigkill":
            os.kill(os.getpid(), signal.SIGKILL)
        if self.kind == "spin" and self.card:
            torch.cuda._sleep(1 << 62)
        while self.kind == "spin" and not self.card:
            pass
        if self.kind == "illegal" and self.card:
            torch.as_tensor(_Beyond(self._ballast), device=self.device).mul_(1.0)
            torch.cuda.synchronize()
        if self.kind == "illegal":
            ctypes.string_at(1)


class _Beyond:
    """More memory than is there, behind one that is: only the card can meet that, no check does."""

    def __init__(self, real):
        self.__cuda_array_interface__ = {
            "shape": (1 << 34,), "typestr": "<f4", "data": (real.data_ptr(), False), "version": 3, "strides": None,
        }  # fmt: skip
