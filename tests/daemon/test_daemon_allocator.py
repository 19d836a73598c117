"""However many threads come and go, the daemon's memory comes from one heap."""

from __future__ import annotations

import subprocess
import sys

import pytest

from supervisor.daemon.allocator import keep_one_heap

THREADS = """
import sys, threading
from pathlib import Path
from supervisor.daemon.allocator import keep_one_heap
if sys.argv[1] == "one":
    assert keep_one_heap()
ready, enough, kept = threading.Barrier(9), threading.Event(), []
def take():
    kept.append([bytearray(2000) for _ in range(200)])
    ready.wait()
    enough.wait()
for _ in range(8):
    threading.Thread(target=take).start()
ready.wait()
maps = [line.split() for line in Path("/proc/self/maps").read_text().splitlines()]
starts = [int(fields[0].split("-")[0], 16) for fields in maps if len(fields) == 5 and fields[1] == "rw-p"]
print(sum(start % (64 << 20) == 0 for start in starts))
enough.set()
"""
"""glibc's further heaps begin at multiples of 64 MiB."""


def heaps_beside_the_first(kept: str) -> int:
    done = subprocess.run([sys.executable, "-c", THREADS, kept], capture_output=True, text=True, check=True, timeout=60)
    return int(done.stdout)


def test_threads_share_one_heap() -> None:
    if not keep_one_heap():
        pytest.skip("not glibc")
    assert heaps_beside_the_first("several") > 0
    assert heaps_beside_the_first("one") == 0
