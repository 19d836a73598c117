"""The terminal: keys without echo, the alternate screen, and only the lines that changed are written."""

from __future__ import annotations

import os
import select
import signal
import sys
import termios
import tty
from collections.abc import Sequence
from types import TracebackType
from typing import Any

from supervisor.cli.table import Pen
from supervisor.cli.top.frame import Line

_ENTER, _LEAVE = "\x1b[?1049h\x1b[?25l\x1b[2J", "\x1b[?25h\x1b[?1049l"
ESCAPE_WAIT_S = 0.05
"""A lone escape is a key; what follows at once belongs to it."""


class Screen:
    """Holds the terminal between `with` and its end, which restores it, also after SIGTERM and SIGHUP."""

    def __init__(self, pen: Pen) -> None:
        """The terminal is that of stdin and stdout."""
        self._pen = pen
        self._keys = sys.stdin.fileno()
        self._shown: list[str] = []
        self._size = (0, 0)
        self._wake_read, self._wake_write = os.pipe()
        os.set_blocking(self._wake_read, False)
        os.set_blocking(self._wake_write, False)

    def __enter__(self) -> Screen:
        self._mode = termios.tcgetattr(self._keys)
        tty.setcbreak(self._keys)
        self._handlers: dict[int, Any] = {
            number: signal.signal(number, _end) for number in (signal.SIGTERM, signal.SIGHUP)
        }
        self._handlers[signal.SIGWINCH] = signal.signal(signal.SIGWINCH, lambda *_: self.wake())
        self._write(_ENTER)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
        self._write(_LEAVE)
        termios.tcsetattr(self._keys, termios.TCSADRAIN, self._mode)

    @property
    def size(self) -> tuple[int, int]:
        """Columns and rows."""
        found = os.get_terminal_size(sys.stdout.fileno())
        return found.columns or 80, found.lines or 24

    def wake(self) -> None:
        """Have `read` return; for any thread."""
        try:
            os.write(self._wake_write, b"w")
        except BlockingIOError:
            return  # it is about to

    def read(self, limit_s: float) -> bytes | None:
        """Return what was typed, b"" where it was woken or nothing came in `limit_s`; None: the terminal is gone."""
        ready, _, _ = select.select([self._keys, self._wake_read], [], [], limit_s)
        if self._wake_read in ready:
            os.read(self._wake_read, 4096)
        if self._keys not in ready:
            return b""
        typed = os.read(self._keys, 1024)
        if typed == b"\x1b" and select.select([self._keys], [], [], ESCAPE_WAIT_S)[0]:
            typed += os.read(self._keys, 1024)
        return typed or None

    def draw(self, lines: Sequence[Line]) -> None:
        """Show a frame."""
        texts = ["".join(self._pen.paint(text, style) for text, style in line) for line in lines]
        if self._size != self.size:
            self._size, self._shown = self.size, []
            self._write("\x1b[2J")
        changed = [
            f"\x1b[{row};1H{text}\x1b[K"
            for row, text in enumerate(texts, 1)
            if row > len(self._shown) or self._shown[row - 1] != text
        ]
        self._write("".join(changed))
        self._shown = texts

    def _write(self, text: str) -> None:
        sys.stdout.write(text)
        sys.stdout.flush()


def _end(number: int, _frame: object) -> None:
    raise SystemExit(128 + number)
