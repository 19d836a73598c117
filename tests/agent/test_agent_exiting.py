"""What a program does at its exit, in threads and exit handlers, is its own stage: no step is due then."""

from __future__ import annotations

import ast
import sys
import textwrap
from pathlib import Path

import pytest
from agent_by_hand import Attempt, interpreters, name_of

TRAINING = """
import atexit, os, sys, threading
import rocm_agent
from rocm_agent import claim, layout

def say(where):
    recorder = claim.holding()
    print(where, layout.STAGES[recorder.stage], recorder.aside, flush=True)

for number in range(5):
    rocm_agent.step(loss=1.0)
say("after the last step")
"""
ENDINGS = {
    "comes to its end": "",
    "asks to end": "sys.exit(3)",
    "asks to end somewhere below": "def main():\n    raise SystemExit\nmain()",
}


def run(attempt: Attempt, python: Path, tmp_path: Path, program: str) -> list[str]:
    script = tmp_path / "train.py"
    script.write_text(TRAINING + textwrap.dedent(program))
    finished = attempt.run([python, script])
    assert not attempt.failures()
    return finished.output.splitlines()


@pytest.mark.parametrize("python", interpreters(), ids=name_of)
@pytest.mark.parametrize("ending", ENDINGS)
def test_exit_handlers_and_threads_run_in_their_own_stage(
    attempt: Attempt, python: Path, tmp_path: Path, ending: str
) -> None:
    uploads = """
        go = threading.Event()
        threading.Thread(target=lambda: (go.wait(), say("in a thread"))).start()
        atexit.register(say, "in an exit handler")
        if hasattr(threading, "_register_atexit"):
            threading._register_atexit(go.set)
        else:
            go.set()
    """
    lines = run(attempt, python, tmp_path, textwrap.dedent(uploads) + ENDINGS[ending])
    assert lines[0] == "after the last step step 0"
    assert lines[-1] == "in an exit handler exiting 0"
    assert attempt.stage() == "exiting"


def test_an_exception_that_ends_the_program_leaves_the_stage_that_it_was_raised_in(
    attempt: Attempt, tmp_path: Path
) -> None:
    lines = run(attempt, interpreters()[-1], tmp_path, "atexit.register(say, 'in an exit handler')\nraise ValueError")
    assert lines[-1] == "in an exit handler step 0"
    (raised,) = attempt.list_reports("exception")
    assert raised["type"] == "ValueError"


@pytest.mark.parametrize("python", interpreters(), ids=name_of)
@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_an_exception_that_ends_a_process_of_multiprocessing_is_reported(
    attempt: Attempt, python: Path, tmp_path: Path, method: str
) -> None:
    """The library prints it itself, and the program may wait for that process for ever."""
    script = tmp_path / "train.py"
    script.write_text(
        textwrap.dedent(f"""
        import multiprocessing, sys
        def simulate(action):
            if action != "leave":
                raise KeyError(action)
            sys.exit(3)
        if __name__ == "__main__":
            for action in ("leave", "jump"):
                process = multiprocessing.get_context({method!r}).Process(target=simulate, args=(action,))
                process.start()
                process.join()
                print(process.exitcode)
        """)
    )
    finished = attempt.run([python, script])
    assert finished.output.splitlines()[0] == "3"
    assert finished.output.splitlines()[-1] == "1"
    (raised,) = attempt.list_reports("exception")
    assert (raised["type"], raised["message"]) == ("KeyError", "'jump'")
    assert raised["pid"] != attempt.list_reports("alive")[0]["pid"]
    assert not attempt.failures()


def test_a_worker_that_was_forked_reports_no_end(attempt: Attempt, tmp_path: Path) -> None:
    forks = """
        import multiprocessing
        worker = multiprocessing.get_context("fork").Process(target=print)
        worker.start()
        worker.join()
        say("after the worker")
        os._exit(0)
    """
    assert run(attempt, interpreters()[-1], tmp_path, forks)[-1] == "after the worker step 0"


def test_a_program_that_ends_before_its_first_step_still_has_the_limits_of_a_start(
    attempt: Attempt, tmp_path: Path
) -> None:
    script = tmp_path / "train.py"
    script.write_text("from rocm_agent import claim\nassert claim.take(claim.GENERIC)\n")
    assert attempt.run([interpreters()[-1], script]).code == 0
    assert attempt.stage() == "warmup"


SEVERAL = """
import multiprocessing, os, signal, sys
import rocm_agent

def train(how, trains, go):
    rocm_agent.step(loss=1.0)
    trains.release()
    go.acquire()
    if how == "raises":
        raise ValueError("a label of 12")
    if how == "asks to end":
        sys.exit(0)

if __name__ == "__main__":
    context = multiprocessing.get_context(sys.argv[1])
    trains, go, never = context.Semaphore(0), context.Semaphore(0), context.Semaphore(0)
    processes = {}
    for how in ("returns", "asks to end", "raises", "is ended by its program", "is killed"):
        waits_for = never if how.startswith("is") else go
        processes[how] = context.Process(target=train, args=(how, trains, waits_for))
        processes[how].start()
        trains.acquire()
    os.kill(processes["is killed"].pid, signal.SIGKILL)
    processes["is ended by its program"].terminate()
    for _ in processes:
        go.release()
    for process in processes.values():
        process.join()
    print({how: process.pid for how, process in processes.items()})
"""


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_of_several_processes_that_train_the_killed_one_is_reported_by_the_program_that_reaped_it(
    attempt: Attempt, tmp_path: Path, method: str
) -> None:
    script = tmp_path / "train.py"
    script.write_text(SEVERAL)
    finished = attempt.run([sys.executable, script, method])
    assert not attempt.failures()
    pids = ast.literal_eval(finished.output.splitlines()[-1])
    (claimed,) = attempt.list_reports("claimed")
    reports = attempt.list_reports("trains")
    began = {claimed["pid"], *(report["pid"] for report in reports if "ended" not in report)}
    assert began == set(pids.values())
    ended = {report.get("of", report["pid"]): report.get("error", "") for report in reports if report.get("ended")}
    assert {how: ended.get(pid) for how, pid in pids.items()} == {
        "returns": "", "asks to end": "", "raises": "ValueError: a label of 12", "is ended by its program": "",
        "is killed": "SIGKILL",
    }  # fmt: skip


LEAVES = """
import os, sys
import rocm_agent
child = os.fork()
if child == 0:
    rocm_agent.step(loss=1.0)
    eval(sys.argv[1])
os.waitpid(child, 0)
print(child)
"""


@pytest.mark.parametrize(
    ("leaves", "error"), [("os._exit(0)", ""), ("os._exit(status=3)", "status 3"), ("os.execvp('true', ['true'])", "")]
)
def test_a_process_that_trains_and_leaves_without_exit_handlers_has_come_to_its_end(
    attempt: Attempt, tmp_path: Path, leaves: str, error: str
) -> None:
    script = tmp_path / "train.py"
    script.write_text(LEAVES)
    finished = attempt.run([sys.executable, script, leaves])
    assert not attempt.failures()
    (ended,) = [report for report in attempt.list_reports("trains") if report.get("ended")]
    assert (ended["pid"], ended["error"]) == (int(finished.output), error)


ENDS = """
import atexit, os, sys
import rocm_agent
rocm_agent.step(loss=1.0)
exec(sys.argv[1])
"""


@pytest.mark.parametrize("python", interpreters(), ids=name_of)
@pytest.mark.parametrize(
    ("ends", "code", "statuses"),
    [
        ("pass", 0, [0]),
        ("sys.exit(3)", 3, [None]),
        ("raise SystemExit('no data')", 1, [None]),
        ("raise ValueError", 1, [None]),
        ("os._exit(3)", 3, [3]),
        ("os._exit(0)", 0, [0]),
        ("atexit.register(os._exit, 3)", 3, [0, 3]),
        ("atexit.register(os._exit, 0)", 0, [0]),
        ("os.execvp('false', ['false'])", 1, [None]),
    ],
)
def test_the_status_of_what_trained_is_reported_where_its_interpreter_knows_it(
    attempt: Attempt, python: Path, ends: str, code: int, statuses: list[int | None]
) -> None:
    finished = attempt.run([python, "-c", ENDS, ends])
    assert (finished.code, attempt.failures()) == (code, [])
    ended = [report for report in attempt.list_reports("trains") if report.get("ended")]
    assert [report.get("status") for report in ended] == statuses


CATCHES = "try:\n    sys.exit(0)\nexcept SystemExit as error:\n    "
EXITS = {
    "sys.exit()": ("sys.exit()", 0, 0),
    "exit(False)": ("exit(False)", 0, 0),
    "in a function": ("def main():\n    sys.exit(0)\nmain()", 0, 0),
    "in another file": ("import runpy\nopen('own.py', 'w').write('exit()')\nrunpy.run_path('own.py')", 0, 0),
    "through finally": ("try:\n    sys.exit(0)\nfinally:\n    print()", 0, 0),
    "through with": ("with open(os.devnull):\n    sys.exit(0)", 0, 0),
    "through a stack": ("import contextlib\nwith contextlib.ExitStack() as stack:\n    sys.exit(0)", 0, 0),
    "raised again": (CATCHES + "print()\n    raise", 0, 0),
    "a text": ("sys.exit('no data')", 1, None),
    "caught, an error follows": (CATCHES + "pass\nraise ValueError", 1, None),
    "caught, an error in its place": (CATCHES + "raise ValueError", 1, None),
    "caught, another status in its place": (CATCHES + "raise SystemExit(3)", 3, None),
    "caught and kept": (CATCHES + "kept = error\nsys.exit(3)", 3, None),
    "another status in finally": ("try:\n    sys.exit(0)\nfinally:\n    sys.exit(3)", 3, None),
    "of a thread": (
        "import threading\nt = threading.Thread(target=sys.exit)\nt.start()\nt.join()\nraise ValueError", 1, None,
    ),
    "of an exit handler": ("atexit.register(sys.exit, 0)\nraise ValueError", 1, None),
    "of argparse": (
        "import argparse as a\ntry:\n    a.ArgumentParser().parse_args(['-h'])\nexcept SystemExit:\n    pass\nint('')",
        1, None,
    ),
}  # fmt: skip
"""Ways of a program to end itself: its last lines, its status, and what is known of that."""
NOT_BEFORE_3_10 = ("in another file", "through finally", "through with", "through a stack", "raised again")


@pytest.mark.parametrize("python", interpreters(), ids=name_of)
@pytest.mark.parametrize("exits", EXITS)
def test_the_status_that_a_program_ends_itself_with_is_known_where_no_frame_has_caught_its_exit(
    attempt: Attempt, python: Path, tmp_path: Path, exits: str
) -> None:
    ends, code, status = EXITS[exits]
    finished = attempt.run([python, "-c", f"import os\nos.chdir({str(tmp_path)!r})\n" + ENDS, ends])
    assert (finished.code, attempt.failures()) == (code, [])
    (ended,) = [report for report in attempt.list_reports("trains") if report.get("ended")]
    unseen = name_of(python) == "python3.8" and exits in NOT_BEFORE_3_10
    assert ended.get("status") == (None if unseen else status)


BELOW = """
import json, os, subprocess, sys, time
folder = os.environ["ROCM_SUPERVISOR_ATTEMPT_DIR"]
with open(os.path.join(folder, "shim.json"), "w") as file:
    json.dump({"training_pid": os.getpid() + NOT_THIS}, file)
trains = "import rocm_agent, time\\nrocm_agent.step(loss=1.0)\\nprint('stepped', flush=True)\\ntime.sleep(60)"
child = subprocess.Popen([sys.executable, "-c", trains], stdout=subprocess.PIPE)
child.stdout.readline()
import atexit, threading
atexit.register(child.kill)
"""


@pytest.mark.parametrize(
    ("program", "other", "reports"),
    [("", 0, 1), ("child.kill()\nchild.wait()\n", 0, 0), ("raise ValueError('lost')\n", 0, 0), ("", 1, 0)],
    ids=["lives", "was killed before", "an exception", "not the command"],
)
def test_what_trains_and_lives_when_its_program_comes_to_its_end_is_reported(  # noqa: PLR0917 - of one story
    attempt: Attempt, python: Path, tmp_path: Path, program: str, other: int, reports: int
) -> None:
    """As an actor of Ray: exit handlers kill it, and it was not lost."""
    script = tmp_path / "train.py"
    script.write_text(BELOW.replace("NOT_THIS", str(other)) + program)
    attempt.run([python, script])
    assert not attempt.failures()
    (claimed,) = attempt.list_reports("claimed")
    assert [report["of"] for report in attempt.list_reports("program_ends")] == [claimed["pid"]] * reports
