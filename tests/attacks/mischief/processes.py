"""Attacks by processes: many, orphaned, misnamed, deaf, large, and those that talk to the control socket."""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from random import Random

from mischief.target import Target

LIFE_S = 4.0
"""How long a child lives that nobody ends."""
HANG_S = 8.0
MB = 1 << 20
_libc = ctypes.CDLL(None, use_errno=True)
PR_SET_NAME = 15
STOP = b"POST /v1/jobs/healthy/stop HTTP/1.1\r\n"
HALF_REQUESTS = (
    b"",
    b"G",
    b"GET /v1/status HTTP/1.1\r\n",
    STOP + b"Host: daemon\r\nContent-Length: 9\r\n\r\n{",
    b"\x16\x03\x01",
    b"GET / HTTP/1.1\r\nX: " + b"a" * 100_000,
    b"GET /v1/jobs/hostile/output HTTP/1.0\r\nHost: daemon\r\n\r\n",
    STOP + b"Host: localhost:80\r\nOrigin: http://evil.example\r\nContent-Length: 0\r\n\r\n",
    b"GET /v1/incidents?limit=1000 HTTP/1.0\r\nHost: daemon\r\n\r\n",
    b"GET /v1/status HTTP/1.0\r\nHost: daemon\r\n\r\n" * 500,
)


def _child(work: Callable[[], None], life_s: float = LIFE_S) -> int:
    pid = os.fork()
    if pid == 0:
        try:
            signal.alarm(int(life_s))
            work()
        finally:
            os._exit(0)
    return pid


def fork(target: Target, chance: Random) -> str:
    """Children that it does not wait for."""
    count = chance.choice([1, 10, 40])
    for _ in range(count):
        _child(lambda: time.sleep(LIFE_S))
    return f"{count} children"


def orphan(target: Target, chance: Random) -> str:
    """Grandchildren in a session of their own, that end with nobody; some are deaf."""
    deaf = chance.random() < 0.5

    def leave() -> None:
        os.setsid()
        if deaf:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
        _child(lambda: time.sleep(LIFE_S))

    os.waitpid(_child(leave), 0)
    return f"an orphan{', deaf to SIGTERM' if deaf else ''}"


def allocate(target: Target, chance: Random) -> str:
    """Take memory for a moment."""
    size = chance.choice([50, 300]) * MB
    held = bytearray(size)
    for at in range(0, size, 4096):
        held[at] = 1
    return f"{size // MB} MB for a moment"


def process_name(target: Target, chance: Random) -> str:
    """A name that looks like other fields of /proc/PID/stat, or is no text."""
    name = chance.choice([b") R 1 1 1", b"a) Z 1 (b", b"\xff\xfe", b"x\ny", b"", b"rocm-supervisord"])
    _libc.prctl(PR_SET_NAME, ctypes.c_char_p(name), 0, 0, 0)
    return f"it is called {name!r}"


def _shim() -> int:
    pid = os.getppid()
    if pid <= 1:
        raise OSError("its shim is gone")
    return pid


def stop_shim(target: Target, chance: Random) -> str:
    """Stop the shim for a moment."""
    pid, pause = _shim(), chance.choice([0.1, 1.0])
    os.kill(pid, signal.SIGSTOP)
    try:
        time.sleep(pause)
    finally:
        os.kill(pid, signal.SIGCONT)
    return f"the shim stopped for {pause} s"


def kill_shim(target: Target, chance: Random) -> str:
    """Kill the shim; how it ended is then nobody's to say, or is said by a forged exit.json."""
    if chance.random() < 0.5:
        with suppress(OSError):
            fd = target.open(target.folder / "exit.json", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            os.write(
                fd, b'{"version": 1, "exit_code": %s, "signal": null, "ended_unix_s": %s}' % (b"9" * 400, b"9" * 400)
            )
            os.close(fd)
    os.kill(_shim(), signal.SIGKILL)
    return "the shim killed"


def end(target: Target, chance: Random) -> str:
    """End with a status."""
    code = chance.choice([0, 1, 2, 7, 78, 137, 255])
    sys.stdout.flush()
    os._exit(code)


def die(target: Target, chance: Random) -> str:
    """End by a signal."""
    number = chance.choice(
        [signal.SIGKILL, signal.SIGSEGV, signal.SIGABRT, signal.SIGTERM, signal.SIGINT, signal.SIGBUS]
    )
    signal.signal(number, signal.SIG_DFL) if number != signal.SIGKILL else None
    os.kill(os.getpid(), number)
    return f"signal {number}"


def hang(target: Target, chance: Random) -> str:
    """Stand still for longer than the stall limit; at times deaf, at times stopped."""
    kind = chance.choice(["sleep", "deaf", "spin", "stopped"])
    if kind == "deaf":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    until = time.perf_counter() + HANG_S
    if kind == "stopped":
        stopped = os.getpid()

        def go_on() -> None:
            time.sleep(HANG_S)
            os.kill(stopped, signal.SIGCONT)

        _child(go_on, HANG_S + 1)
        os.kill(stopped, signal.SIGSTOP)
    while time.perf_counter() < until:
        if kind != "spin":
            time.sleep(0.1)
    return f"hung for {HANG_S:.0f} s, {kind}"


def clock(target: Target, chance: Random) -> str:
    """Set the machine's clock, where that is refused: root is kept from it here."""
    if os.geteuid() == 0:
        raise OSError("a test must not set the clock of its machine")
    time.clock_settime(time.CLOCK_REALTIME, chance.choice([0.0, 4e9]))
    return "the clock is set"


def _talk(target: Target, content: bytes) -> socket.socket:
    made = socket.socket(socket.AF_UNIX)
    made.settimeout(0.2)
    try:
        made.connect(str(target.socket))
        with suppress(OSError):
            made.sendall(content)
    except OSError:
        made.close()
        raise
    return made


def socket_garbage(target: Target, chance: Random) -> str:
    """Say something at the control socket that is no request, or none that is allowed."""
    content = chance.choice([*HALF_REQUESTS, chance.randbytes(3000)])
    with _talk(target, content) as made, suppress(OSError):
        made.recv(4096)
    return f"{content[:40]!r} at the control socket"


def socket_crowd(target: Target, chance: Random) -> str:
    """Many half requests at once, held for a moment."""
    crowd = []
    with suppress(OSError):
        for _ in range(chance.choice([70, 300])):
            crowd.append(_talk(target, b"GET /v1/status HTTP/1.1\r\n"))
    time.sleep(0.3)
    for made in crowd:
        made.close()
    return f"{len(crowd)} half requests at the control socket"


ACTIONS: Mapping[str, Callable[[Target, Random], str]] = {
    "socket": socket_garbage,
    **{
        made.__name__: made
        for made in (
            fork, orphan, allocate, process_name, stop_shim, kill_shim, end, die, hang, clock, socket_crowd,
        )
    },
}  # fmt: skip
