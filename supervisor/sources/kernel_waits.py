"""Reads which threads of one process wait in the kernel, and where; it waits for none and interprets no name."""

from __future__ import annotations

from pathlib import Path

from supervisor.core.readings import KernelWait

THREADS_LIMIT = 256
WAITS_LIMIT = 8
FRAMES_KEPT = 6


def waits_of(pid: int, name: str, proc: Path = Path("/proc")) -> tuple[KernelWait, ...]:
    """Return the threads in state D, at most `WAITS_LIMIT`; () for a process that is gone.

    Of a process whose main thread was killed already (a zombie) another thread may still be there: it is that which
    keeps the card. The channel is the kernel's function; the stack is for root only.
    """
    found: list[KernelWait] = []
    try:
        threads = [one for one, _ in zip((proc / str(pid) / "task").iterdir(), range(THREADS_LIMIT), strict=False)]
    except OSError:
        return ()
    for thread in threads:
        if len(found) < WAITS_LIMIT and _state(thread) == "D":
            channel = _text(thread / "wchan").strip()
            found.append(
                KernelWait(
                    pid=pid,
                    name=name,
                    thread=int(thread.name),
                    channel=channel if channel not in ("", "0") else None,
                    stack=_frames(_text(thread / "stack")),
                    switches=_switches(_text(thread / "status")),
                )
            )
    return tuple(found)


def _state(thread: Path) -> str:
    """Return the state's letter: the word after the name in brackets, which may hold brackets itself (proc(5))."""
    return _text(thread / "stat").rpartition(")")[2].strip()[:1]


def _switches(status: str) -> int | None:
    """Return the context switches of a thread, of its own will and against it; None where the kernel counts none."""
    found = [line.split()[1] for line in status.splitlines() if "voluntary_ctxt_switches:" in line]
    return sum(map(int, found)) if len(found) == 2 and all(map(str.isdecimal, found)) else None


def _frames(text: str) -> tuple[str, ...]:
    """Return the functions of a kernel stack, innermost first: each line is `[<0>] function+0x1/0x2`."""
    names = (line.split("] ", 1)[-1].split("+", 1)[0].strip() for line in text.splitlines())
    return tuple(one for one in names if one)[:FRAMES_KEPT]


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
