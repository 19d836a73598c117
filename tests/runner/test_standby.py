"""An interpreter that stands by: as the attempt it is what a cold start would have been, and else it is nothing."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from attempts_by_hand import Attempts, gone, until
from standby_by_hand import REPORT, Standing, report

from supervisor.core import attempt_files as names
from supervisor.runner import process_table, shim, standby
from supervisor.runner.attempt_folder import read_shim
from supervisor.runner.launcher import LaunchError

pytestmark = pytest.mark.whole_torch(reason="what an interpreter has imported")

SPAWNING = """
import multiprocessing, sys
def double(number):
    import rocm_agent.claim
    return 2 * number, rocm_agent.claim._folder is not None
if __name__ == "__main__":
    for way in ("spawn", "fork"):
        with multiprocessing.get_context(way).Pool(1) as pool:
            print(way, pool.map(double, [21]))
"""


@pytest.fixture
def runs(tmp_path: Path) -> Iterator[Attempts]:
    with Attempts(tmp_path / "state") as made:
        yield made


@pytest.fixture
def program(tmp_path: Path) -> Path:
    path = tmp_path / "program" / "train.py"
    path.parent.mkdir()
    path.write_text(REPORT)
    return path


Argv = Callable[[Path], list[str]]
COMMANDS: dict[str, Argv] = {
    "script": lambda path: [sys.executable, str(path), "one"],
    "relative": lambda path: [sys.executable, path.name, "one"],
    "module": lambda path: [sys.executable, "-u", "-m", path.stem, "one", "two"],
    "code": lambda _: [sys.executable, "-W", "error", "-X", "faulthandler", "-c", REPORT, "one"],
    "console script": lambda path: [str(path.with_name("yolo")), "one"],
    "by PATH": lambda path: [path.with_name("yolo").name, "one"],
}


@pytest.mark.parametrize("argv", COMMANDS.values(), ids=COMMANDS)
def test_the_program_finds_what_a_cold_python_gives_it(runs: Attempts, program: Path, argv: Argv) -> None:
    script = program.with_name("yolo")
    script.write_text(f"#!{sys.executable}\n{REPORT}")
    script.chmod(0o755)
    standing = Standing(runs, [*argv(program)])
    standing.cwd, standing.env = str(program.parent), {"PATH": f"{program.parent}:{os.environ['PATH']}"}
    standing.begin()
    assert standing.go() is None
    warm = report(standing.output())
    folder = standing.prepare_cold()
    runs.launcher.launch("job", folder)
    runs.exit(folder)
    cold = report((folder / names.OUTPUT).read_text().replace("/jobs/job/3", "/jobs/job/2"))
    assert warm == cold


def test_the_commands_last_words_may_change_with_the_launch(runs: Attempts, program: Path) -> None:
    standing = Standing(runs, [sys.executable, str(program), "model={checkpoint}"])
    standing.resumed_argv = [sys.executable, str(program), "model=/runs/last.pt", "resume=True"]
    standing.begin()
    assert standing.go() is None
    found = report(standing.output())
    assert found["argv"] == [str(program), "model=/runs/last.pt", "resume=True"]
    if found["orig_argv"] is not None:
        assert found["orig_argv"] == standing.resumed_argv


def test_its_numbers_are_those_of_core() -> None:
    text = Path(shim.__file__).with_name("standby_shim.py").read_text()
    for name in (names.STANDBY, names.GO_FIFO, names.GOING, names.READY, names.REFUSED, names.REMEDIES, names.OUTPUT):
        assert f'"{name.removeprefix("run/")}"' in text
    for name in (names.ENV_STANDBY, names.ENV_RESUME_FROM, names.ENV_MEAN_FAULT):
        assert f'"{name}"' in text


def test_its_shim_is_the_attempts_shim(runs: Attempts) -> None:
    code = "import sys, time; print('begun', flush=True); time.sleep(60)"
    standing = Standing(runs, [sys.executable, "-c", code])
    standing.begin()
    waiting, interpreter = standing.shim, standing.interpreter
    assert not runs.launcher.alive("job", standing.attempt)
    assert [list(path.iterdir()) for path in standing.attempt.iterdir()] == [
        []
    ]  # no claim, no recorder, no word: nothing of an attempt
    assert standing.go() is None
    note = runs.note(standing.attempt)
    assert (note.pid, note.training_pid, note.problem) == (waiting, interpreter, None)
    assert runs.launcher.alive("job", standing.attempt)
    until(lambda: "begun" in (standing.attempt / names.OUTPUT).read_text(), "the program")
    runs.signal(standing.attempt, names.SHIM_SAVE_AND_END)
    assert runs.exit(standing.attempt).signal == signal.SIGTERM
    until(lambda: not runs.launcher.alive("job", standing.attempt), "the end")


@pytest.mark.parametrize(
    ("code", "ending"),
    [
        ("import sys; sys.exit(7)", (7, None)),
        ("raise SystemExit('no')", (1, None)),
        ("raise ValueError", (1, None)),
        ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", (None, signal.SIGSEGV)),
    ],
)
def test_it_ends_as_a_cold_one_does(runs: Attempts, code: str, ending: tuple[int | None, int | None]) -> None:
    standing = Standing(runs, [sys.executable, "-c", code])
    standing.begin()
    assert standing.go() is None
    status = runs.exit(standing.attempt)
    assert (status.code, status.signal) == ending


def test_its_workers_are_workers(runs: Attempts, program: Path) -> None:
    program.write_text(SPAWNING)
    standing = Standing(runs, [sys.executable, str(program)])
    standing.begin()
    assert standing.go() is None
    assert standing.output() == "spawn [(42, True)]\nfork [(42, True)]\n"


@pytest.mark.parametrize(
    ("others", "why"),
    [
        ({"cwd": "/tmp"}, "the working directory differs"),
        ({"argv": [sys.executable, "-O", "-c", "print('cold')"]}, "the command differs"),
        ({"argv": ["/bin/echo", "cold"]}, "the command differs"),
        ({"remedies": {"amp": {"value": False, "remedies": ["amp_off"]}}}, "the remedies differ"),
        ({"env": {"OMP_NUM_THREADS": "3"}}, "the variable OMP_NUM_THREADS differs"),
        ({"env": {"HIP_VISIBLE_DEVICES": ""}}, "the variable HIP_VISIBLE_DEVICES differs"),
        ({"env": {names.ENV_CONV2D: "planned"}}, f"the variable {names.ENV_CONV2D} differs"),
    ],
)
def test_what_is_launched_otherwise_is_launched_from_cold(runs: Attempts, others: dict[str, object], why: str) -> None:
    standing = Standing(runs, [sys.executable, "-c", "print('cold')"])
    standing.begin()
    if isinstance(others.get("env"), dict):
        others = {"env": {**standing.composed(), **others["env"]}}  # type: ignore[dict-item]  # it is a dict
    assert standing.go(**others) == why
    until(standing.nothing_waits, "its end")
    runs.launcher.launch("job", standing.attempt)
    assert standing.output() == "cold\n"


def test_a_module_that_changed_since_is_imported_again(runs: Attempts, tmp_path: Path) -> None:
    own = tmp_path / "own"
    own.mkdir()
    (own / "model.py").write_text("layers = 3\n")
    standing = Standing(runs, [sys.executable, "-c", "import model; print(model.layers)"], [("model", None)])
    standing.env = {"PYTHONPATH": str(own)}
    standing.begin()
    (own / "model.py").write_text("layers = 40\n")
    assert standing.go() == f"{own / 'model.py'} has changed since it was imported"
    runs.launcher.launch("job", standing.attempt)
    assert standing.output() == "40\n"


def test_the_programs_own_folder_comes_first(runs: Attempts, program: Path) -> None:
    """A clone of a library beside the script is what the script imports, and not the one that is installed."""
    (program.parent / "fractions.py").write_text("mine = True\n")
    standing = Standing(runs, [sys.executable, str(program)], [("fractions", None)])
    standing.begin(ready=False)
    assert standby.refused(standing.attempt) == f"the program would import fractions from {program.parent}/fractions.py"


BEGAN = "open('began', 'w')"


@pytest.mark.parametrize(
    ("argv", "why"),
    [
        (["/bin/sh", "-c", ">began"], "is not a Python interpreter"),
        (["touch", "began"], "is not a Python interpreter"),
        ([sys.executable, "-I", "-c", BEGAN], "does not load the agent"),
        ([sys.executable, "-S", "-c", BEGAN], "does not load the agent"),
        ([sys.executable, "-u"], "does not run a Python program"),
        (["python-of-tomorrow", "x.py"], "is not on the job's PATH"),
    ],
)
def test_a_command_whose_program_would_begin_at_once_is_never_begun(
    runs: Attempts, tmp_path: Path, argv: list[str], why: str
) -> None:
    standing = Standing(runs, argv)
    standing.cwd = str(tmp_path)
    with pytest.raises(LaunchError, match=why):
        standing.begin()
    until(standing.nothing_waits, "its end")
    assert not (tmp_path / "began").exists()
    assert not standby.waits(standing.attempt)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("import random; random.random()", "what is imported draws random numbers"),
        ("open_card = open('/dev/nvidia-of-a-test', 'rb')", "opens /dev/nvidia-of-a-test"),
        ("raise RuntimeError('broken')", "theirs cannot be imported: RuntimeError: broken"),
        ("import os; os._exit(3)", "it has ended"),
        ("raise SystemExit", "it has ended"),
    ],
)
def test_what_does_not_import_soundly_does_not_stand_by(runs: Attempts, tmp_path: Path, text: str, why: str) -> None:
    mine = f"nvidia-of-test-{os.getpid()}"  # tests in other processes have cards of their own
    text, why = text.replace("nvidia-of-a-test", mine), why.replace("nvidia-of-a-test", mine)
    card = Path("/dev") / mine
    if "nvidia" in text:
        if os.geteuid() != 0:
            pytest.skip("needs root")
        card.write_bytes(b"")
    (tmp_path / "theirs.py").write_text(text + "\n")
    try:
        standing = Standing(runs, [sys.executable, "-c", "print('began')"], [("theirs", None)])
        standing.env = {"PYTHONPATH": str(tmp_path)}
        standing.begin(ready=False)
        assert why in str(standby.refused(standing.attempt))
        until(standing.nothing_waits, "its end")
    finally:
        card.unlink(missing_ok=True)


def test_a_module_from_elsewhere_than_the_trainings_is_refused(runs: Attempts) -> None:
    standing = Standing(runs, [sys.executable, "-c", "1"], [("decimal", "/opt/other/decimal.py")])
    standing.begin(ready=False)
    assert "and by the training in /opt/other/decimal.py" in str(standby.refused(standing.attempt))


TRAINING = """
import hashlib, random, sys
import numpy
numpy.random.seed(3); random.seed(4)  # what is imported from here on must leave them alone
from ultralytics import YOLO
import torch
torch.manual_seed(5)
print("begun", "torch" in sys.modules, torch.cuda.is_initialized(), torch.get_num_threads(), random.random())
print(torch.rand(3).tolist(), torch._C._get_tracing_state(), torch.is_grad_enabled(), torch.get_default_dtype())
data = torch.utils.data.TensorDataset(torch.randn(64, 3, 8, 8), torch.tensor(numpy.random.randint(0, 4, 64)))
layers = [torch.nn.Conv2d(3, 8, 3), torch.nn.BatchNorm2d(8), torch.nn.Flatten(), torch.nn.Linear(288, 4)]
model = torch.nn.Sequential(*layers)
optimizer = torch.optim.AdamW(model.parameters(), lr=random.random() / 100)
for images, labels in torch.utils.data.DataLoader(data, batch_size=8, shuffle=True, num_workers=1):
    loss = torch.nn.functional.cross_entropy(torch.nn.functional.dropout(model(images), 0.1), labels)
    optimizer.zero_grad(); loss.backward(); optimizer.step()
print(loss.item(), hashlib.sha256(b"".join(one.numpy().tobytes() for one in model.state_dict().values())).hexdigest())
"""


@pytest.mark.train
def test_a_training_makes_the_same_numbers_as_from_cold(
    runs: Attempts, tmp_path: Path, train_python: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS")  # importing ultralytics sets it where nobody did
    roots = ("ultralytics", "torch", "ultralytics.models", "ultralytics.engine.trainer")
    standing = Standing(runs, [str(train_python), "-c", TRAINING], [(name, None) for name in roots])
    standing.env = {"HOME": str(tmp_path), "YOLO_CONFIG_DIR": str(tmp_path), "YOLO_OFFLINE": "true"}
    standing.begin()
    assert standing.go() is None
    folder = standing.prepare_cold()
    warm = standing.output().partition("begun")[2]  # what importing printed, it printed before
    runs.launcher.launch("job", folder)
    runs.exit(folder)
    assert warm.startswith(" True False 1 ")
    assert warm == (folder / names.OUTPUT).read_text().partition("begun")[2]


@pytest.mark.parametrize("whom", ["shim", "interpreter"])
def test_one_that_was_killed_is_known_to_be_gone(runs: Attempts, whom: str) -> None:
    standing = Standing(runs, [sys.executable, "-c", "print('cold')"])
    standing.begin()
    interpreter = standing.interpreter
    os.kill(getattr(standing, whom), signal.SIGKILL)
    until(lambda: gone(interpreter) and not standby.waits(standing.attempt), "the end of both")
    assert standing.go() in (standby.UNASKED, "it has ended")
    standby.clear(standing.attempt)
    runs.launcher.launch("job", standing.prepare())
    assert standing.output() == "cold\n"


def test_what_is_released_takes_nothing_from_the_attempt_that_is_launched_in_place_of_it(runs: Attempts) -> None:
    """The attempt's folder is there, with its launch.json, when the one that stood by for it is passed over."""
    standing = Standing(runs, [sys.executable, "-c", "print('cold')"])
    standing.begin()
    standing.end_before()
    folder = standing.prepare()
    interpreter = standing.interpreter
    os.kill(standing.shim, signal.SIGKILL)
    until(lambda: gone(interpreter) and not standby.waits(standing.attempt), "the end of both")
    standby.clear(standing.attempt)
    runs.launcher.launch("job", folder)
    runs.exit(folder)
    assert (folder / names.OUTPUT).read_text() == "cold\n"


def test_dismissed_it_leaves_nothing(runs: Attempts) -> None:
    standing = Standing(runs, [sys.executable, "-c", "1"])
    standing.begin()
    interpreter = standing.interpreter
    runs.launcher.dismiss("job", standing.attempt)
    standby.clear(standing.attempt)
    until(lambda: standing.nothing_waits() and gone(interpreter), "the end of both")
    assert not standing.attempt.exists()
    assert not standby.folder_of(standing.attempt).exists()


def test_ordered_to_go_and_to_end_it_goes(runs: Attempts) -> None:
    """The daemon that said go may have died, and the next one lets go of what it finds waiting."""
    standing = Standing(runs, [sys.executable, "-c", "import time; time.sleep(60)"])
    standing.begin()
    standing.end_before()
    standing.prepare()
    os.kill(standing.shim, signal.SIGSTOP)
    pid = standing.shim
    (standby.folder_of(standing.attempt) / names.GO_FIFO).open("wb", buffering=0).write(b"go\nend\n")
    os.kill(pid, signal.SIGCONT)
    until(lambda: process_table.read_process(pid) is not None and read_shim(standing.attempt), "the attempt")
    assert runs.note(standing.attempt).pid == pid
    runs.launcher.dismiss("job", standing.attempt)
    assert runs.launcher.alive("job", standing.attempt)


def test_it_does_not_outlive_a_job_that_nobody_goes_on_with(runs: Attempts) -> None:
    standing = Standing(runs, [sys.executable, "-c", "1"])
    standing.alone_s = 0.2
    standing.begin()
    standing.end_before()
    until(standing.nothing_waits, "its end")
    assert standby.refused(standing.attempt) == "it was not requested within its limit"


def test_the_training_goes_first_while_it_waits(runs: Attempts) -> None:
    standing = Standing(runs, [sys.executable, "-c", "import time; time.sleep(60)"])
    standing.begin()
    assert Path(f"/proc/{standing.interpreter}/oom_score_adj").read_text().strip() == "1000"
    if os.geteuid() == 0:
        assert os.getpriority(os.PRIO_PROCESS, standing.interpreter) == 19
    interpreter = standing.interpreter
    assert standing.go() is None
    assert Path(f"/proc/{interpreter}/oom_score_adj").read_text() == Path("/proc/self/oom_score_adj").read_text()
    assert os.getpriority(os.PRIO_PROCESS, interpreter) == os.getpriority(os.PRIO_PROCESS, 0)
