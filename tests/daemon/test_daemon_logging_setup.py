"""A log line is written soon, in order and once; nobody waits for a reader who does not read."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest

from supervisor.daemon.process.logging_setup import LogWriter


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    ends = os.pipe()
    yield ends
    for end in ends:
        os.close(end)


def test_lines_come_in_their_order(pipe: tuple[int, int]) -> None:
    writer = LogWriter(pipe[1])
    for number in range(100):
        writer.write(f"daemon.test number={number}\n")
    writer.drain()
    lines = os.read(pipe[0], 65536).decode().splitlines()
    assert lines == [f"daemon.test number={number}" for number in range(100)]


DROPPED = re.compile(r'^<4>log\.dropped lines=(\d+) why="standard error was not read"$', re.MULTILINE)


@pytest.mark.parametrize("blocking", [True, False])
def test_nobody_waits_for_a_reader_who_stopped_reading_and_what_was_dropped_is_counted(
    pipe: tuple[int, int], blocking: bool
) -> None:
    os.set_blocking(pipe[1], blocking)
    writer, count = LogWriter(pipe[1], prefix="<4>"), 200

    def log_much() -> None:
        for _ in range(count):
            writer.write("x " + "y" * 16_000 + "\n")

    flood = threading.Thread(target=log_much, daemon=True)
    flood.start()
    flood.join(120)
    assert not flood.is_alive(), "a log call waits for the reader"
    written, kept, dropped = "", 0, 0
    while kept + dropped < count or not written.endswith("\n"):
        written += os.read(pipe[0], 1 << 20).decode()
        kept = sum(line.startswith("x ") for line in written.splitlines())
        dropped = sum(map(int, DROPPED.findall(written)))
    assert 0 < kept < count
    assert kept + dropped == count


def test_the_last_words_of_a_process_are_written() -> None:
    code = "import logging; from supervisor.daemon.process import logging_setup; "
    code += "logging_setup.begin('info', journal=True); logging.getLogger().warning('daemon.last')"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True)
    assert ran.stderr == "<4>daemon.last\n"


SAYS_MUCH = """
import sys, threading
from supervisor.daemon.process import logging_setup
logging_setup.begin("info", journal=False)
class Failing:
    def __del__(self):
        raise ValueError("x" * 100_000)
del_in_here = Failing()
del del_in_here
def fail():
    raise ValueError("x" * 100_000)
thread = threading.Thread(target=fail)
thread.start()
thread.join()
print("y" * 100_000, file=sys.stderr)
print("went on", flush=True)
sys.stdin.read()
"""


def test_what_python_itself_reports_waits_for_no_reader_either() -> None:
    command = (sys.executable, "-c", SAYS_MUCH)
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdin is not None
        assert process.stdout.readline() == "went on\n"
        _, errors = process.communicate("", 120)
    assert errors.count("ValueError: " + "x" * 100_000) == 2
    assert errors.endswith("y" * 100_000 + "\n")


def test_a_reader_who_went_ends_nobody(pipe: tuple[int, int]) -> None:
    reader, gone = os.pipe()
    os.close(reader)
    writer = LogWriter(gone)
    writer.write("x\n")
    writer.drain()
    os.close(gone)
