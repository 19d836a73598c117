"""Reads cards through the optional package pyamdgpuinfo, in a child process that a deadline kills; never in here."""

from __future__ import annotations

import json
import os
import selectors
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar

from supervisor.core.moments import Moment
from supervisor.core.readings import GpuReading
from supervisor.sources.plausible import celsius, count, number, pci_address, percent, watts
from supervisor.sources.source import SourceSilentError

CHILD = Path(__file__).with_name("pyamdgpuinfo_child.py")
_LONGEST_ANSWER_BYTES = 1 << 20


class Pyamdgpuinfo:
    """The package of the name, asked through a child that is started at the first reading and kept."""

    name: ClassVar[str] = "pyamdgpuinfo"
    wait_s: ClassVar[float] = 0.0

    def __init__(
        self, interpreter: str = sys.executable, child: Path = CHILD, interval_s: float = 2.0, deadline_s: float = 5.0
    ) -> None:
        # -I: neither the user's directory nor PYTHONPATH may put another pyamdgpuinfo in front.
        self._command = (interpreter, "-I", str(child))
        self._child: subprocess.Popen[bytes] | None = None
        self._unread = b""
        self.interval_s = interval_s
        self.deadline_s = deadline_s

    def read(self, now: Moment) -> tuple[GpuReading, ...]:
        """Ask the child. Raises SourceSilentError with what it says against it: not installed, no permission, late."""
        try:
            if self._child is None:
                self._start()
            return parse(self._ask(), now)
        except SourceSilentError:
            self.close()
            raise
        except OSError as error:
            self.close()
            raise SourceSilentError(f"child: {error.strerror or error}") from error

    def close(self) -> None:
        """Kill the child. One that waits in the kernel is left behind, with its pipes closed."""
        child, self._child, self._unread = self._child, None, b""
        if child is None:
            return
        child.kill()
        for pipe in (child.stdin, child.stdout):
            if pipe:
                pipe.close()
        try:
            child.wait(timeout=1.0)
        except subprocess.TimeoutExpired:
            return

    def _start(self) -> None:
        self._child = subprocess.Popen(
            self._command,
            bufsize=0,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        self._answer()

    def _ask(self) -> Mapping[str, object]:
        assert self._child is not None
        assert self._child.stdin is not None
        self._child.stdin.write(b"\n")
        return self._answer()

    def _answer(self) -> Mapping[str, object]:
        try:
            answer = json.loads(self._line())
        except (ValueError, RecursionError) as error:
            raise SourceSilentError("the child's answer is no JSON") from error
        if not isinstance(answer, dict):
            raise SourceSilentError("the child's answer is no object")
        if "error" in answer:
            raise SourceSilentError(str(answer["error"])[:200])
        return answer

    def _line(self) -> bytes:
        assert self._child is not None
        assert self._child.stdout is not None
        end = time.perf_counter() + self.deadline_s
        with selectors.DefaultSelector() as ready:
            ready.register(self._child.stdout, selectors.EVENT_READ)
            while b"\n" not in self._unread:
                if not ready.select(max(0.0, end - time.perf_counter())):
                    raise SourceSilentError(f"no answer within {self.deadline_s:.0f} s")
                chunk = os.read(self._child.stdout.fileno(), 65536)
                self._unread += chunk
                if not chunk or len(self._unread) > _LONGEST_ANSWER_BYTES:
                    raise SourceSilentError("the child ended" if not chunk else "the child's answer has no end")
        line, _, self._unread = self._unread.partition(b"\n")
        return line


def parse(answer: Mapping[str, object], at: Moment) -> tuple[GpuReading, ...]:
    """Return one reading for each card with a PCI address in the child's answer."""
    cards = answer.get("cards")
    if not isinstance(cards, list):
        return ()
    return tuple(
        _reading(card, gpu, at)
        for card in cards
        if isinstance(card, dict) and (gpu := pci_address(card.get("pci_slot")))
    )


def _reading(card: Mapping[str, object], gpu: str, at: Moment) -> GpuReading:
    load = number(card.get("load"))
    name = card.get("name")
    return GpuReading(
        at=at,
        gpu=gpu,
        source=Pyamdgpuinfo.name,
        name=name[:200] if isinstance(name, str) and name else None,
        gpu_busy_percent=None if load is None else percent(load * 100),
        vram_used_bytes=count(number(card.get("vram_used"))),
        vram_total_bytes=count(number(card.get("vram_total"))),
        gtt_used_bytes=count(number(card.get("gtt_used"))),
        gtt_total_bytes=count(number(card.get("gtt_total"))),
        edge_c=celsius(number(card.get("temperature"))),
        power_w=watts(number(card.get("power"))),
        sclk_hz=count(number(card.get("sclk"))),
        mclk_hz=count(number(card.get("mclk"))),
    )
