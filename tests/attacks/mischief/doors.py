"""Attacks on what else listens or waits for an answer: the page and its login, the metrics, a tune."""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from random import Random

from mischief.target import Target
from mischief.words import append_word, odd

WAIT_S = 0.2
QUESTION_CHARS = 65536
HELD_S = 0.3
GET = b"GET %s HTTP/1.1\r\nHost: %s\r\n%s\r\n"
PLACES = (
    b"/", b"/metrics", b"/api/overview", b"/api/trainings/hostile/log?after=99999999999999999999", b"/api/../secret",
    b"/api/trainings/%2e%2e%2f%2e%2e/steps?from=nan&to=1e999&points=-1", b"/static/..%2f..%2f..%2fetc/passwd", b"//x",
    b"/api/trainings/healthy/steps?points=999999999999", b"/\xff\x00", b"/api/trainings/" + b"a" * 60_000,
)  # fmt: skip
HOSTS = (b"localhost", b"daemon", b"127.0.0.1", b"evil.example", b"localhost:99999", b"", b"a" * 9000)
HEADS = (
    b"", b"Origin: http://evil.example\r\n", b"Sec-Fetch-Site: cross-site\r\n",
    b"X-Page-Key: " + b"k" * 50_000 + b"\r\n", b"Cookie: page=" + b"0" * 64 + b"\r\nX-Page-Key: 0\r\n",
    b"Accept: application/openmetrics-text;q=1e400\r\n",
    b"Content-Length: 99999999999999999999\r\n", b"Transfer-Encoding: chunked\r\n", b"Connection: Upgrade\r\n",
    b"Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Key: eA==\r\nSec-WebSocket-Version: 13\r\n",
    b"Range: bytes=0-,1-,2-\r\n", b"Accept-Encoding: gzip\r\n" * 200,
)  # fmt: skip
LOGIN = (b"", b"token\n", b"revoke\n", b"token", b"\xff\n", b"t" * 200_000, b"\n" * 5000, b"token\r\nrevoke\r\n")


def _open(door: str) -> socket.socket:
    """Connect to a path or HOST:PORT; raises OSError."""
    host, colon, port = door.rpartition(":")
    made = socket.socket(socket.AF_INET if colon else socket.AF_UNIX)
    made.settimeout(WAIT_S)
    try:
        made.connect((host, int(port)) if colon else door)
    except OSError:
        made.close()
        raise
    return made


def _request(chance: Random) -> bytes:
    if chance.random() < 0.2:
        body = json.dumps({"token": odd(chance)}, default=str).encode("utf-8", "surrogatepass")[:4000]
        return b"POST /session HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body)
    if chance.random() < 0.1:
        return chance.randbytes(chance.choice([1, 300, 70_000]))
    return GET % (chance.choice(PLACES), chance.choice(HOSTS), chance.choice(HEADS))


def door(target: Target, chance: Random) -> str:
    """Ask the page, its login or the metrics for what is not there, not allowed, or no request."""
    where = chance.choice(target.doors)
    content = chance.choice(LOGIN) if "login" in where else _request(chance) * chance.choice([1, 1, 1, 200])
    with _open(where) as made, suppress(OSError):
        made.sendall(content)
        if chance.random() < 0.7:
            made.recv(4096)
    return f"{content[:40]!r}, {len(content)} bytes at {where}"


def door_crowd(target: Target, chance: Random) -> str:
    """Many connections to one of them at once, with half a request, a whole one, or nothing."""
    where, crowd = chance.choice(target.doors), []
    begun = chance.choice([b"", b"GET /metrics HTTP/1.1\r\nHost:", GET % (b"/metrics", b"localhost", b"")])
    with suppress(OSError):
        for _ in range(chance.choice([40, 150])):
            crowd.append(_open(where))
            crowd[-1].sendall(begun)
    time.sleep(HELD_S)
    for made in crowd:
        made.close()
    return f"{len(crowd)} connections at {where} with {begun[:30]!r}"


def tune(target: Target, chance: Random) -> str:
    """Ask for a tune of this training, which then answers it, or end one, with bodies that need not be valid."""
    body = chance.choice([
        {}, {"for_s": chance.choice([5, 30, -1, 1e308])}, {"dry_run": True}, {"stop": True}, {"undo": True},
        {"may": [str(odd(chance))[:200]]}, {str(odd(chance))[:60]: odd(chance)},
    ])  # fmt: skip
    content = json.dumps(body).encode("utf-8", "surrogatepass")
    head = f"POST /v1/jobs/{target.job.name}/tune HTTP/1.1\r\nHost: daemon\r\nContent-Type: application/json\r\n"
    with _open(str(target.socket)) as made, suppress(OSError):
        made.sendall(f"{head}Content-Length: {len(content)}\r\n\r\n".encode() + content)
        made.recv(4096)
    return f"a tune asked for with {str(body)[:60]}"


def tune_answer(target: Target, chance: Random) -> str:
    """Answer the tune under way, or one that is not, with facts that no training has."""
    asked = 1
    with suppress(OSError, ValueError), os.fdopen(target.open(target.folder / "tune.json", os.O_RDONLY)) as question:
        # The file may be a FIFO of its own by now, or of 8 TB.
        asked = json.loads(question.read(QUESTION_CHARS))["id"]
    for _ in range(chance.choice([1, 1, 20])):
        names = ("facts", "refused", "step", "held", "settings", "steps", "reverted")
        append_word(target, {
            "event": "tuning", "id": chance.choice([asked, asked, odd(chance)]),
            **{name: odd(chance) for name in chance.sample(names, 3)},
            **chance.choice([{}, {"refused": {str(odd(chance))[:50]: odd(chance)}}, {"facts": {
                name: odd(chance) for name in ("torch", "gpu", "workers", "batch", "optimizer", "device", "knobs")
            }}]),
        })  # fmt: skip
    return f"answers to the tune {str(asked)[:20]} by process {os.getpid()}"


ACTIONS: Mapping[str, Callable[[Target, Random], str]] = {
    made.__name__: made for made in (door, door_crowd, tune, tune_answer)
}
