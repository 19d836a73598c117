"""What supervision does to a Python program that trains nothing: nothing that the program could notice."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import pytest
from agent_by_hand import AGENT_PATH, Attempt, wait_for

from supervisor.core import attempt_files as at

DUMP = signal.SIGRTMIN + at.STACKS_SIGNAL_OFFSET


def test_a_process_says_that_it_is_alive(attempt: Attempt, python: Path) -> None:
    assert attempt.run([python, "-c", "print('hello')"]) == (0, "hello\n")
    (alive,) = attempt.list_reports()
    assert alive["event"] == "alive"
    assert alive["rank"] == 0
    assert Path(alive["python"]).name.startswith("python")
    assert not attempt.recorder().exists()


def test_the_users_own_sitecustomize_runs_too_and_may_change_the_path(
    attempt: Attempt, python: Path, tmp_path: Path
) -> None:
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    (theirs / "sitecustomize.py").write_text("import sys\nsys.path.append('/added')\nmark = 'theirs'\n")
    program = "import sitecustomize, rocm_agent, sys; print(sitecustomize.mark, '/added' in sys.path, sys.path[1])"
    finished = attempt.run([python, "-c", program], PYTHONPATH=str(theirs))
    assert finished == (0, f"theirs True {AGENT_PATH}\n")
    assert attempt.list_reports("alive")


def test_an_error_in_the_users_sitecustomize_is_reported_as_without_us(
    attempt: Attempt, python: Path, tmp_path: Path
) -> None:
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    (theirs / "sitecustomize.py").write_text("raise RuntimeError('theirs is broken')\n")
    finished = attempt.run([python, "-c", "print('goes on')"], PYTHONPATH=str(theirs))
    assert finished.code == 0
    assert "theirs is broken" in finished.output
    assert "goes on\n" in finished.output


def test_without_the_variable_nothing_of_the_agent_is_imported(attempt: Attempt, python: Path) -> None:
    program = "import sys; print([name for name in sys.modules if 'rocm_agent' in name], *sys.meta_path)"
    finished = attempt.run([python, "-c", program], **{at.ENV_FOLDER: ""})
    assert finished.output.startswith("[] ")
    assert "rocm_agent" not in finished.output
    assert list((attempt.folder / at.RUN).iterdir()) == []


def test_the_start_imports_no_torch_and_nothing_slow(attempt: Attempt, python: Path) -> None:
    program = "import sys; print({'torch', 'typing', 're', 'json', 'mmap', 'traceback', 'signal'} & set(sys.modules))"
    plain = attempt.run([python, "-c", program], **{at.ENV_FOLDER: ""})
    assert attempt.run([python, "-c", program]) == plain


@pytest.mark.parametrize("kind", ["absent", "file", "unreadable"])
def test_a_broken_attempt_folder_never_raises_into_the_program(tmp_path: Path, python: Path, kind: str) -> None:
    folder = tmp_path / "attempt"
    if kind == "file":
        folder.write_text("not a folder")
    elif kind == "unreadable":
        for name in (at.AGENT, at.RECORDER):
            (folder / name).mkdir(parents=True)
        (folder / at.STACKS).write_text("not a folder")
    broken = Attempt(tmp_path / "elsewhere")
    program = "import rocm_agent as a; a.step(loss=1.0); a.stage('validate'); a.checkpoint_saved('x'); print('fine')"
    assert broken.run([python, "-c", program], **{at.ENV_FOLDER: str(folder / at.RUN)}) == (0, "fine\n")


def test_the_exception_that_ends_a_program_is_reported_and_printed(attempt: Attempt, python: Path) -> None:
    finished = attempt.run([python, "-c", "def f(n): raise ValueError('bad ' + 'x' * 99999)\nf(1)"])
    assert finished.code == 1
    assert "ValueError: bad" in finished.output
    (reported,) = attempt.list_reports("exception")
    assert reported["type"] == "ValueError"
    assert reported["message"].startswith("bad xxx")
    assert "in f" in reported["traceback"]
    assert len(reported["traceback"]) <= 16 << 10


def test_an_exception_is_reported_even_where_a_library_replaced_the_hook(attempt: Attempt, python: Path) -> None:
    program = "import sys\nsys.excepthook = lambda *a: print('pretty')\n1 / 0"
    assert attempt.run([python, "-c", program]) == (1, "pretty\n")
    assert [reported["type"] for reported in attempt.list_reports("exception")] == ["ZeroDivisionError"]


@pytest.mark.parametrize("leave", ["sys.exit(1)", "sys.exit('no')", "exit(1)"])
def test_an_exception_that_the_program_answers_with_its_end_is_reported(
    attempt: Attempt, python: Path, leave: str
) -> None:
    """So do decorators that print a shorter text, Hydra's among them: no hook for exceptions is called."""
    program = f"""
import sys
try:
    raise MemoryError("no more")
except Exception as error:
    print("it went wrong")
    {leave}
"""
    finished = attempt.run([python, "-c", program])
    assert finished.code == 1
    assert "it went wrong\n" in finished.output
    (reported,) = attempt.list_reports("exception")
    assert (reported["type"], reported["message"]) == ("MemoryError", "no more")
    assert "in <module>" in reported["traceback"]


@pytest.mark.parametrize(
    "program",
    [
        pytest.param("try: 1 / 0\nexcept Exception: sys.exit(0)", id="the end is a good one"),
        pytest.param("try: 1 / 0\nexcept Exception: pass\nsys.exit(1)", id="it was dealt with before"),
        pytest.param(
            "def end():\n  try: 1 / 0\n  except Exception: sys.exit(1)\n"
            "t = threading.Thread(target=end); t.start(); t.join()",
            id="a thread ends",
        ),
        pytest.param(
            "import argparse; parser = argparse.ArgumentParser(); parser.add_argument('--n', type=int)\n"
            "parser.parse_args(['--n', 'x'])",
            id="an argument is wrong",
        ),
        pytest.param(
            "try:\n  try: 1 / 0\n  except Exception: sys.exit(1)\nexcept SystemExit: pass\nsys.exit(2)",
            id="another end was asked for later",
        ),
        pytest.param(
            "class Exit(RuntimeError):\n  def __init__(self, code): self.exit_code = code\n"
            "try: raise Exit(137)\nexcept Exit as end: sys.exit(end.exit_code)",
            id="a status is passed on, as by click",
        ),
    ],
)
def test_what_does_not_end_a_program_is_not_reported_as_its_end(attempt: Attempt, python: Path, program: str) -> None:
    attempt.run([python, "-c", f"import sys, threading\n{program}"])
    assert attempt.list_reports("exception") == []


def test_of_the_warnings_under_a_tune_advice_is_none(attempt: Attempt, python: Path) -> None:
    program = """
import warnings
from rocm_agent import tuning
seen = tuning.Warnings()
seen.follow()
warnings.warn("TensorFloat32 tensor cores for float32 matrix multiplication available but not enabled. Consider")
warnings.warn("the loss is NaN")
warnings.warn("the loss is NaN")
print(seen.take(), seen.take())
"""
    finished = attempt.run([python, "-c", program])
    assert "['the loss is NaN'] []" in finished.output.splitlines()


IN_A_THREAD = """
import threading, rocm_agent

def train():
    rocm_agent.step(loss=1.0)
    raise ValueError("bad sample")

def other():
    raise KeyError("of the server")

for target in (train, other):
    thread = threading.Thread(target=target)
    thread.start()
    thread.join()
print("serves on", flush=True)
"""


def test_the_exception_that_ends_the_thread_which_trains_is_reported(attempt: Attempt, python: Path) -> None:
    """As of a web application, which goes on without it; what ends another thread is none of the training's."""
    finished = attempt.run([python, "-c", IN_A_THREAD])
    assert finished.code == 0
    assert "ValueError: bad sample" in finished.output
    assert "KeyError: 'of the server'" in finished.output
    (reported,) = attempt.list_reports("exception")
    assert (reported["type"], reported["message"]) == ("ValueError", "bad sample")


def test_what_a_signal_handler_raises_while_an_exception_is_reported_is_reported_in_its_place(
    attempt: Attempt, python: Path
) -> None:
    """The handler that torch has for SIGCHLD raises wherever the main thread is, and names the worker that died."""
    program = """
import os, signal

def handler(*_):
    raise RuntimeError("DataLoader worker (pid 7) is killed by signal: Killed.")

class Broken(Exception):
    def __str__(self):
        os.kill(os.getpid(), signal.SIGUSR1)
        return "the connection broke"

def reads():
    raise Broken

signal.signal(signal.SIGUSR1, handler)
reads()
"""
    assert attempt.run([python, "-c", program]).code == 1
    (reported,) = attempt.list_reports("exception")
    assert reported["message"] == "DataLoader worker (pid 7) is killed by signal: Killed."
    assert "in reads" in reported["traceback"]
    assert attempt.failures() == []


def test_a_process_dumps_its_stacks_when_asked_and_takes_the_file_away(attempt: Attempt, python: Path) -> None:
    program = "import sys\ndef waits_here():\n    print('up', flush=True)\n    sys.stdin.read()\nwaits_here()"
    process = attempt.start([python, "-c", program])
    assert process.stdout is not None
    try:
        assert process.stdout.readline() == "up\n"
        file = attempt.folder / at.STACKS / f"{process.pid}.txt"
        process.send_signal(DUMP)
        wait_for(lambda: "waits_here" in file.read_text())
    finally:
        process.communicate(timeout=120)
    assert process.returncode == 0
    assert not file.exists()


FORKS = """
import multiprocessing as mp, os, sys, threading
def child(ready, done):
    ready.set()
    done.wait(120)
if __name__ == "__main__":
    context = mp.get_context("fork")
    ready, done = context.Event(), context.Event()
    process = context.Process(target=child, args=(ready, done))
    process.start()
    ready.wait(120)
    print(process.pid, flush=True)
    sys.stdin.read()
    done.set()
    process.join()
"""


def test_a_forked_child_answers_into_its_own_file_until_it_ends(attempt: Attempt, python: Path) -> None:
    process = attempt.start([python, "-c", FORKS])
    assert process.stdout is not None
    try:
        pid = int(process.stdout.readline())
        file = attempt.folder / at.STACKS / f"{pid}.txt"
        assert file.exists()
        os.kill(pid, DUMP)
        wait_for(lambda: "in child" in file.read_text())
    finally:
        process.communicate(timeout=120)
    assert list((attempt.folder / at.STACKS).iterdir()) == []


def test_a_forked_child_does_not_write_through_a_link_in_place_of_the_folder(
    attempt: Attempt, python: Path, tmp_path: Path
) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    stacks = attempt.folder / at.STACKS
    program = f"""
import os, shutil
shutil.rmtree({str(stacks)!r})
os.symlink({str(elsewhere)!r}, {str(stacks)!r})
pid = os.fork()
if pid == 0:
    os._exit(len(os.listdir({str(elsewhere)!r})))
raise SystemExit(os.WEXITSTATUS(os.waitpid(pid, 0)[1]))
"""
    assert attempt.run([python, "-c", program]).code == 0
    assert list(elsewhere.iterdir()) == []


@pytest.mark.parametrize(
    ("program", "reported"),
    [
        ("import torch, ultralytics", ["torch", "ultralytics"]),
        ("import ultralytics, torch", ["ultralytics", "torch"]),
        ("import os, torchvision, torch; import ultralytics", ["torchvision", "torch", "ultralytics"]),
        ("import os, torch; os.environ['OMP_NUM_THREADS'] = '3'; import ultralytics", ["torch"]),
        ("import os; os.environ['OMP_NUM_THREADS'] = '3'; import torch, ultralytics", []),
    ],
)
def test_the_order_of_what_takes_long_to_import_is_reported(
    attempt: Attempt, tmp_path: Path, program: str, reported: list[str]
) -> None:
    """Whoever imports it before its time has to do so in the same order: ultralytics sets what torch reads."""
    own = "import os\nos.environ['OMP_NUM_THREADS'] = '3'\nimport torch\n"
    for name, text in (("torch", ""), ("torchvision", "import torch\n"), ("ultralytics", own)):
        (tmp_path / f"{name}.py").write_text(text)
    attempt.make_recorder()
    code = f"{program}; import rocm_agent; rocm_agent.step(loss=1.0, step=1)"
    assert attempt.run([sys.executable, "-c", code], PYTHONPATH=str(tmp_path)).code == 0
    (claimed,) = attempt.list_reports("claimed")
    assert claimed["imported"] == [[name, str(tmp_path / f"{name}.py")] for name in reported]


COLLECTED = """
import gc, sys
def has_young(things):
    return any(thing is young for thing in things for young in gc.get_objects(generation=0))
import torchvision
print(torchvision.collects, gc.isenabled(), has_young([torchvision.made]), gc.get_freeze_count() < 2000)
del sys.modules["torchvision"]
gc.disable()
import torchvision
print(torchvision.collects, gc.isenabled())
gc.enable()
gc.freeze()
frozen = gc.get_freeze_count()
try:
    import lightning
except ValueError:
    print(gc.isenabled(), gc.get_freeze_count() == frozen)
"""


def test_the_collector_rests_while_a_large_package_is_imported_and_is_the_programs_again(
    attempt: Attempt, python: Path, tmp_path: Path
) -> None:
    """One whose import fails too; a program that switched it off, or froze its objects, keeps both."""
    (tmp_path / "torchvision.py").write_text("import gc\ncollects, made = gc.isenabled(), []\n")
    (tmp_path / "lightning.py").write_text("raise ValueError('not this version')\n")
    finished = attempt.run([python, "-c", COLLECTED], PYTHONPATH=str(tmp_path))
    assert finished.output.splitlines() == ["False True False True", "False False", "True True"]
