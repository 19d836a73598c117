"""The first failure of any rank is the cause of the end, whatever its launcher and the other ranks raise after it."""

from __future__ import annotations

import pytest

from supervisor.core import events as ev
from supervisor.core.findings import FaultClass
from supervisor.core.flags import RedFlag
from supervisor.core.job import Limits, Phase
from supervisor.core.rank_failure import is_consequence
from supervisor.core.remedies.causes import OOM_GPU, OOM_HOST
from supervisor.core.remedies.settings import Remedies
from supervisor.core.retry import KILLED
from supervisor.core.rules import cause_of
from supervisor.core.rules.crash import Crash

from .stories import JOB, Story, life, story

BANNER = """
============================================================
train.py FAILED
------------------------------------------------------------
Failures:
{others}------------------------------------------------------------
Root Cause (first observed failure):
[0]:
{root}============================================================"""
"""As torch.distributed.elastic.multiprocessing.errors.ChildFailedError formats it (torch 1.13 and 2.12)."""
LOST = "[/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:547] Connection closed by peer [127.0.0.1]:17823"


def failed(rank: int, code: int, pid: int) -> str:
    signal = {-9: "  (SIGKILL)", -15: "  (SIGTERM)", -11: "  (SIGSEGV)"}.get(code, "")
    output = f"Signal {-code} ({signal.strip(' ()')}) received by PID {pid}" if code < 0 else "To enable traceback see:"
    return (
        f"  time      : 2026-11-22_05:53:19\n  host      : localhost\n  rank      : {rank} (local_rank: {rank})\n"
        f"  exitcode  : {code} (pid: {pid}){signal}\n  error_file: <N/A>\n  traceback : {output}\n"
    )


def banner(root: tuple[int, int, int], *others: tuple[int, int, int]) -> str:
    listed = "".join(f"[{number}]:\n{failed(*other)}" for number, other in enumerate(others, 1))
    return BANNER.format(others=listed or "  <NO_OTHER_FAILURES>\n", root=failed(*root))


def raises(timeline: Story, kind: str, message: str, *, pid: int, rank: int = 0, after_s: float = 0.1) -> Story:
    timeline.silence(after_s)
    trace = f'Traceback (most recent call last):\n  File "train.py", line 15, in <module>\n{kind}: {message}\n'
    facts: dict[str, object] = {"type": kind, "message": message, "traceback": trace}
    timeline.put(
        ev.AgentReported(
            at=timeline.now,
            job=JOB,
            attempt=timeline.attempt,
            agent_event=ev.AgentEvent.EXCEPTION,
            facts=facts,
            pid=pid,
            rank=rank,
        )
    )
    return timeline


def torchrun_fails(timeline: Story, root: tuple[int, int, int], *others: tuple[int, int, int]) -> RedFlag:
    raises(timeline, "ChildFailedError", banner(root, *others), pid=100).exits(1)
    flag = timeline.check(Crash())
    assert flag is not None
    return flag


def test_want_of_memory_of_one_rank_is_the_cause_and_not_the_launchers_banner() -> None:
    timeline = raises(
        story().training(), "OutOfMemoryError", "CUDA out of memory. Tried to allocate 2 GiB", pid=201, rank=1
    )
    raises(timeline, "RuntimeError", LOST, pid=200)
    flag = torchrun_fails(timeline, (1, 1, 201), (0, -15, 200))
    assert flag.fault == FaultClass.OOM_GPU.value
    assert cause_of(flag) == OOM_GPU
    assert flag.message.startswith("rank 1: OutOfMemoryError: CUDA out of memory.")
    assert 'File "train.py", line 15' in flag.message


def test_want_of_memory_under_a_launcher_takes_the_remedies_of_memory() -> None:
    timeline = life().training()
    raises(timeline, "OutOfMemoryError", "HIP out of memory. Tried to allocate 2.00 GiB", pid=201, rank=1)
    raises(timeline, "ChildFailedError", banner((1, 1, 201), (0, -15, 200)), pid=100)
    timeline.says(ev.AgentEvent.PATCHED).exits(1)
    assert timeline.job.course.trials[-1].cause == OOM_GPU
    assert timeline.job.course.trials[-1].remedy == "allocator"


@pytest.mark.parametrize("first", [0, 1])
def test_the_rank_that_failed_first_is_the_cause_whichever_the_launcher_saw_first(first: int) -> None:
    timeline = raises(story().training(), "ValueError", "label 81 is beyond the classes", pid=201, rank=1)
    raises(timeline, "RuntimeError", LOST, pid=200)
    ends = [(1, 1, 201), (0, 1, 200)]
    flag = torchrun_fails(timeline, ends[first], ends[1 - first])
    assert flag.fault == "exception"
    assert flag.message.startswith("rank 1: ValueError: label 81 is beyond the classes")


@pytest.mark.parametrize(
    ("code", "name", "fault"), [(-9, "SIGKILL", "killed_by_signal"), (-11, "SIGSEGV", "illegal_access")]
)
def test_a_rank_that_a_signal_killed_is_named_by_the_launchers_report(code: int, name: str, fault: str) -> None:
    timeline = raises(story().training(), "RuntimeError", LOST, pid=200)
    flag = torchrun_fails(timeline, (1, code, 201), (0, -15, 200))
    assert flag.fault == fault
    assert f"rank 1 (pid 201) was killed by {name}, as its launcher reports" in flag.message


def test_a_rank_that_was_killed_is_no_sign_of_a_fault_in_data_or_code() -> None:
    timeline = life().training()
    raises(timeline, "ChildFailedError", banner((1, -9, 201), (0, -15, 200)), pid=100).exits(1)
    assert timeline.job.course.trials[-1].remedy == "restart"
    assert timeline.job.course.trials[-1].reason == KILLED


def test_a_restart_that_is_forbidden_is_no_remedy_for_a_killed_rank_either() -> None:
    timeline = life(limits=Limits(remedies=Remedies(forbid=("restart",)))).training()
    raises(timeline, "ChildFailedError", banner((1, -9, 201), (0, -15, 200)), pid=100).exits(1)
    assert [trial.remedy for trial in timeline.job.course.trials if trial.remedy == "restart"] == []
    assert KILLED not in [trial.reason for trial in timeline.job.course.trials]


def test_a_killed_rank_is_the_cause_also_where_the_launcher_saw_another_first() -> None:
    timeline = raises(story().training(), "RuntimeError", LOST, pid=200)
    flag = torchrun_fails(timeline, (0, 1, 200), (1, -9, 201))
    assert "rank 1 (pid 201) was killed by SIGKILL" in flag.message


def test_a_killed_rank_that_the_launcher_saw_first_is_the_cause_whatever_another_raised() -> None:
    """What a rank raises when its peer is gone is not always recognized as a consequence."""
    timeline = raises(story().training(), "KeyError", "'labels'", pid=200)
    flag = torchrun_fails(timeline, (1, -9, 201), (0, 1, 200))
    assert "rank 1 (pid 201) was killed by SIGKILL" in flag.message


def test_of_two_killed_ranks_the_one_that_reported_nothing_is_the_cause() -> None:
    """The launcher saw another rank first; the killed one that raised what follows from it is none."""
    timeline = raises(story().training(), "RuntimeError", LOST, pid=200)
    raises(timeline, "RuntimeError", LOST, pid=201, rank=1)
    flag = torchrun_fails(timeline, (0, 1, 200), (1, -9, 201), (2, -11, 202))
    assert "rank 2 (pid 202) was killed by SIGSEGV" in flag.message


def test_what_follows_from_another_rank_is_recognized_by_its_message_alone() -> None:
    timeline = raises(story().training(), "RuntimeError", LOST, pid=200, rank=2)
    raises(timeline, "KeyError", "'labels'", pid=201, rank=1).exits(1)
    flag = timeline.check(Crash())
    assert flag is not None
    assert flag.message.startswith("rank 1: KeyError: 'labels'")


@pytest.mark.parametrize(
    "message",
    [
        "[../third_party/gloo/gloo/transport/tcp/unbound_buffer.cc:81] Timed out waiting 2000ms for recv operation",
        "[../third_party/gloo/gloo/transport/tcp/pair.cc:525] Read error [10.77.1.5]:24315: No route to host",
        "Application timeout caused pair closure",
        "Gloo connectFullMesh failed with timed out connecting: SO_ERROR: Connection refused",
        "Rank 5 failed to pass monitoredBarrier in 30000 ms",
    ],
)
def test_a_peer_that_cannot_be_reached_is_no_fault_of_the_rank_that_waits_for_it(message: str) -> None:
    """As a link that is cut looks to the ranks at its other end."""
    assert is_consequence("RuntimeError", message)


def test_what_a_rank_printed_is_the_cause_where_it_raised_nothing_that_was_seen() -> None:
    """A decorator that prints the exception and calls `sys.exit` hides it from every hook; Hydra's is one."""
    timeline = story().training()
    timeline.prints("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.", FaultClass.OOM_GPU)
    flag = torchrun_fails(timeline, (1, 1, 201), (0, -15, 200))
    assert flag.fault == FaultClass.OOM_GPU.value
    assert "Tried to allocate 2.00 GiB" in flag.message


def test_a_rank_that_printed_nothing_is_named_with_its_status() -> None:
    flag = torchrun_fails(story().training(), (1, 1, 201), (0, -15, 200))
    assert flag.fault == "exit_code"
    assert flag.message.startswith("rank 1 (pid 201) ended with status 1, as its launcher reports")


def test_ranks_that_the_launcher_ended_are_no_cause() -> None:
    timeline = raises(story().training(), "RuntimeError", LOST, pid=200)
    flag = torchrun_fails(timeline, (0, 1, 200), (1, -15, 201))
    assert flag.message.startswith("RuntimeError: [/pytorch/third_party/gloo")


@pytest.mark.parametrize(("victim", "fault"), [(201, "oom_host"), (999, "killed_by_signal")])
def test_the_kernels_word_of_a_rank_that_it_killed_is_want_of_memory(victim: int, fault: str) -> None:
    timeline = story().training().kernel(FaultClass.OOM_KILL, f"Out of memory: Killed process {victim}", pid=victim)
    flag = torchrun_fails(timeline, (1, -9, 201), (0, -15, 200))
    assert flag.fault == fault
    assert (cause_of(flag) == OOM_HOST) == (victim == 201)


def test_the_exceptions_of_an_earlier_run_in_the_same_attempt_are_none_of_this_end() -> None:
    timeline = raises(story().training(), "ValueError", "long ago", pid=150, rank=1).silence(300)
    raises(timeline, "OutOfMemoryError", "CUDA out of memory", pid=201, rank=1)
    assert torchrun_fails(timeline, (1, 1, 201)).fault == FaultClass.OOM_GPU.value


def test_what_a_spawned_process_raised_is_quoted_by_its_parent() -> None:
    quoted = "\n\n-- Process 1 terminated with the following error:\nTraceback (most recent call last):\n"
    quoted += (
        '  File "spawn.py", line 90, in _wrap\ntorch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB\n'
    )
    timeline = raises(story().training(), "ProcessRaisedException", quoted, pid=100).exits(1)
    flag = timeline.check(Crash())
    assert flag is not None
    assert flag.fault == FaultClass.OOM_GPU.value
    assert flag.message.startswith("OutOfMemoryError: CUDA out of memory.")


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("ProcessExitedException", "process 1 terminated with signal SIGKILL"),
        ("CalledProcessError", "Command '['python', 'ddp.py']' died with <Signals.SIGKILL: 9>."),
    ],
)
def test_a_signal_that_a_parent_reports_in_other_words(kind: str, message: str) -> None:
    timeline = raises(story().training(), kind, message, pid=100).exits(1)
    flag = timeline.check(Crash())
    assert flag is not None
    assert flag.fault == "killed_by_signal"
    assert "killed by SIGKILL" in flag.message


def test_a_signal_that_a_parent_reports_is_known_whatever_a_launcher_above_it_reports_later() -> None:
    timeline = raises(story().training(), "ProcessExitedException", "process 1 terminated with signal SIGKILL", pid=100)
    raises(timeline, "CalledProcessError", "Command '['python', 'ddp.py']' returned non-zero exit status 1.", pid=101)
    flag = timeline.exits(1).check(Crash())
    assert flag is not None
    assert flag.fault == "killed_by_signal"


def test_a_launcher_in_a_launcher_hides_nothing() -> None:
    """As ultralytics trains on several cards: its program runs torch.distributed.run, which runs the ranks."""
    timeline = raises(story().training(), "OutOfMemoryError", "CUDA out of memory", pid=301, rank=1)
    raises(timeline, "ChildFailedError", banner((1, 1, 301)), pid=200)
    raises(
        timeline, "CalledProcessError", "Command '['python', '-m', 'torch.distributed.run']' returned 1", pid=100
    ).exits(1)
    flag = timeline.check(Crash())
    assert flag is not None
    assert flag.fault == FaultClass.OOM_GPU.value


def test_one_process_ends_by_its_newest_exception() -> None:
    timeline = raises(story().training(), "ValueError", "of a program that it ran", pid=400)
    raises(timeline, "KeyError", "'x'", pid=4242).exits(1)
    flag = timeline.check(Crash())
    assert flag is not None
    assert flag.message.startswith("KeyError: 'x'")


@pytest.mark.parametrize("order", [("KeyError", "EOFError"), ("EOFError", "KeyError")])
def test_a_pipe_that_broke_is_not_why_either_side_of_it_ended(order: tuple[str, str]) -> None:
    """A simulator's process raises, and the training that reads from it then; or the other way around."""
    timeline = story().training()
    for pid, kind in zip((400, 4242), order, strict=True):
        raises(timeline, kind, "'reward'" if kind == "KeyError" else "", pid=pid)
    flag = timeline.exits(1).check(Crash())
    assert flag is not None
    assert flag.message.startswith("KeyError: 'reward'")


def test_a_pipe_that_broke_is_named_where_no_process_raised_anything_else() -> None:
    timeline = raises(story().training(), "BrokenPipeError", "[Errno 32] Broken pipe", pid=4242).exits(1)
    flag = timeline.check(Crash())
    assert flag is not None
    assert flag.message.startswith("BrokenPipeError")


CELL = """An error occurred while executing the following cell:
------------------
import socket, torch
state = torch.load("last.pt")
------------------

\x1b[31mOSError\x1b[39m                                   Traceback (most recent call last)
\x1b[36mFile \x1b[39m\x1b[32mserialization.py:807\x1b[39m, in __init__
\x1b[31mOSError\x1b[39m: [Errno 22] Invalid argument
"""


def test_what_a_notebooks_cell_raised_is_the_cause_and_not_the_program_that_quotes_it() -> None:
    """The program's message begins with the source of the cell, by whose words nothing is known of its failure."""
    timeline = raises(story(), "OSError", "[Errno 22] Invalid argument", pid=400)
    flag = raises(timeline, "CellExecutionError", CELL, pid=4242).exits(1).check(Crash())
    assert flag is not None
    assert flag.message.startswith("OSError: [Errno 22] Invalid argument")
    assert flag.start_failure is not None


def test_an_exception_of_another_process_that_is_not_quoted_is_not_the_cause() -> None:
    timeline = raises(story(), "OSError", "[Errno 2] No such file or directory", pid=400)
    flag = raises(timeline, "CellExecutionError", CELL, pid=4242).exits(1).check(Crash())
    assert flag is not None
    assert flag.message.startswith("OSError: [Errno 22] Invalid argument (quoted by CellExecutionError)")


def test_a_start_that_fails_in_the_same_way_on_every_rank_is_given_up() -> None:
    timeline = life()
    for pid in (200, 300):
        timeline.started().silence(5)
        raises(timeline, "ModuleNotFoundError", "No module named 'timmm'", pid=pid + 1, rank=1)
        raises(timeline, "ModuleNotFoundError", "No module named 'timmm'", pid=pid)
        raises(timeline, "ChildFailedError", banner((1, 1, pid + 1), (0, 1, pid)), pid=pid - 1).exits(1)
        if timeline.job.retry is not None and pid == 200:
            timeline.silence(1).looks()
    assert timeline.read_decisions() == ["Launch", "Retry", "Launch", "GiveUp"]


def test_a_rank_that_ends_with_a_status_and_raises_nothing_is_named_with_it() -> None:
    timeline = story().training().prints("train.py: error: unrecognized arguments: --bach 8").prints("=" * 60)
    flag = torchrun_fails(timeline, (0, 2, 200), (1, 2, 201))
    assert flag.message == "rank 0 (pid 200) ended with status 2, as its launcher reports"
    assert flag.fault == "exit_code"
    assert cause_of(flag) == "crash"


def test_a_usage_error_of_every_rank_is_given_up_after_the_second_time() -> None:
    timeline = life()
    for _ in range(2):
        timeline.started().says(ev.AgentEvent.ALIVE).silence(5)
        report = banner((0, 2, 200 + timeline.attempt), (1, 2, 300 + timeline.attempt))
        timeline.says(ev.AgentEvent.EXCEPTION, type="ChildFailedError", message=report, traceback=report).exits(1)
        if timeline.phase() is Phase.BACKOFF:
            timeline.silence(1).looks()
    assert timeline.read_decisions() == ["Launch", "Retry", "Launch", "GiveUp"], timeline.job.reason
    assert "ended with status 2" in str(timeline.job.reason)


def test_a_status_that_may_be_another_one_next_time_is_tried_again() -> None:
    timeline = life()
    for _ in range(2):
        timeline.started().says(ev.AgentEvent.ALIVE).silence(5)
        report = banner((0, 1, 200 + timeline.attempt))
        timeline.says(ev.AgentEvent.EXCEPTION, type="ChildFailedError", message=report, traceback=report).exits(1)
        if timeline.phase() is Phase.BACKOFF:
            timeline.silence(1).looks()
    assert "GiveUp" not in timeline.read_decisions()


def test_what_a_loaders_worker_raises_once_the_training_was_killed_is_not_why() -> None:
    """Its connection to the training breaks: the kill would be taken for a fault of the program."""
    killed = story().started(4242).training().exits(signal=9)
    flag = raises(killed, "ConnectionResetError", "Connection reset by peer", pid=77, after_s=0.004).check(Crash())
    assert flag is not None
    assert (flag.fault, flag.message) == ("killed_by_signal", "was killed by SIGKILL")


def test_what_another_process_raised_before_the_signal_or_the_training_itself_is_why() -> None:
    before = raises(story().started(4242).training(), "ValueError", "no labels", pid=77).silence(0.1).exits(signal=6)
    own = raises(story().started(4242).training().exits(signal=6), "ValueError", "no labels", pid=4242)
    for timeline in (before, own):
        flag = timeline.check(Crash())
        assert flag is not None
        assert (flag.fault, "ValueError: no labels" in flag.message) == ("exception", True)
