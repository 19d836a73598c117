"""A vendor's tool or library that no signal ends is left alone, named, and not started a second time."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from supervisor.core.moments import Moment
from supervisor.sources.gpu.child import Child
from supervisor.sources.gpu.source import SourceSilentError
from supervisor.sources.gpu.tool import Tool
from supervisor.sources.kernel.journal import REOPEN_S, JournalLog
from tests.rigs.hanging_fs import HangingFs, hanging

pytestmark = [pytest.mark.mounts, pytest.mark.calm(reason="limits of seconds beside a device that hangs")]
LIMIT_S = 2.0
SCRIPT = """
import sys
print("{{}}", flush=True)
for _ in sys.stdin:
    open({path!r}).read()
    print("{{}}", flush=True)
"""


@pytest.fixture
def gpu_reset(tmp_path: Path) -> Iterator[HangingFs]:
    """A stand-in for a GPU in reset: whoever reads of it waits in the kernel, beyond SIGKILL."""
    with hanging(tmp_path / "device", tmp_path / "behind") as served:
        (served.real / "metrics").write_text("{}\n")
        yield served


def processes_with(text: str) -> list[int]:
    """Return the processes below this one whose command line names something."""
    found = []
    for process in psutil.Process().children(recursive=True):
        try:
            found += [process.pid] if any(text in word for word in process.cmdline()) else []
        except psutil.NoSuchProcess:
            continue
    return found


def wait_for_answer(ask: Callable[[], object]) -> object:
    """Ask until the earlier process has ended and been reaped."""
    end = time.perf_counter() + 120
    while True:
        try:
            return ask()
        except SourceSilentError as error:
            if "could not be killed" not in str(error) or time.perf_counter() > end:
                raise
            time.sleep(0.05)


def test_a_tool_is_not_run_again_until_the_earlier_one_has_ended(gpu_reset: HangingFs) -> None:
    path = str(gpu_reset.at / "metrics")
    tool = Tool(("cat", path), LIMIT_S)
    assert tool.run() == "{}\n"
    gpu_reset.hang(beyond_sigkill=True)
    with pytest.raises(SourceSilentError, match="no answer within 2 s"):
        tool.run()
    (pid,) = processes_with(path)
    for _ in range(3):
        with pytest.raises(SourceSilentError, match=rf"an earlier cat \(pid {pid}\) could not be killed"):
            tool.run()
    assert processes_with(path) == [pid]
    gpu_reset.go_on()
    assert wait_for_answer(tool.run) == "{}\n"


def test_a_library_in_a_child_is_not_asked_again_until_the_earlier_child_has_ended(
    gpu_reset: HangingFs, tmp_path: Path
) -> None:
    script = tmp_path / "asks_the_library.py"
    script.write_text(SCRIPT.format(path=str(gpu_reset.at / "metrics")))
    child = Child(script, LIMIT_S, sys.executable)
    try:
        assert child.ask() == {}
        gpu_reset.hang(beyond_sigkill=True)
        with pytest.raises(SourceSilentError, match="no answer within 2 s"):
            child.ask()
        (pid,) = processes_with(script.name)
        for _ in range(3):
            with pytest.raises(SourceSilentError, match=rf"an earlier child \(pid {pid}\) could not be killed"):
                child.ask()
        assert processes_with(script.name) == [pid]
        gpu_reset.go_on()
        assert wait_for_answer(child.ask) == {}
    finally:
        child.close()


def test_a_journal_reader_that_cannot_be_killed_is_not_started_again(gpu_reset: HangingFs) -> None:
    path = str(gpu_reset.at / "metrics")
    gpu_reset.hang(beyond_sigkill=True)
    journal = JournalLog(None, command=("sh", "-c", f"read line <{path}", path))
    journal.read(Moment(0.0, 0.0))
    end = time.perf_counter() + 120
    while not gpu_reset.held:
        assert time.perf_counter() < end, "it has not read"
    (pid,) = processes_with(path)
    journal.close()
    assert journal.read(Moment(REOPEN_S, REOPEN_S)) is None
    assert processes_with(path) == [pid]
    assert f"an earlier sh (pid {pid}) could not be killed" in str(journal.problem)
    gpu_reset.go_on()
