"""Trainings killed in mid-epoch go on from their newest snapshot as if nothing had been: bit by bit, batch by batch."""

from __future__ import annotations

import json
import signal
import subprocess
import zipfile
from pathlib import Path

import pytest
from agent_by_hand import AGENT_PATH, Attempt, Attempts, Finished, plain_environment

from supervisor.core import attempt_files as at
from tests.rigs.warm import YOLO as YOLO_MODULES
from tests.rigs.warm import Warm, WarmInterpreter

pytestmark = pytest.mark.train

HERE = Path(__file__).resolve().parent
LOOP = HERE / "own_loop.py"


class Loops(Attempts):
    """Runs of own_loop.py in one folder."""

    def __init__(self, python: Path, folder: Path, warm: WarmInterpreter | None = None) -> None:
        super().__init__(python, folder, LOOP, warm=warm)

    def alone(self, *options: str) -> str:
        environment = plain_environment(OMP_NUM_THREADS="1", PYTHONPATH=str(AGENT_PATH))
        command = [*map(str, self.command), *options]
        return subprocess.run(
            command, env=environment, cwd=self.folder, capture_output=True, text=True, check=True
        ).stdout

    def killed(self, times: int, *options: str) -> Finished:
        """Kill it in the middle of something, again and again, and let the last one come to its end."""
        for after in range(times):
            finished = self.run("--die-after", str(7 + 2 * after), "--step-s", "0.05", *options)
            assert finished.code == -signal.SIGKILL, finished.output
        assert self.newest() is not None
        finished = self.run(*options)
        assert finished.code == 0, finished.output
        return finished


@pytest.fixture
def loops(train_python: Path, tmp_path: Path, warm: Warm) -> Loops:
    return Loops(train_python, tmp_path, warm(train_python, *YOLO_MODULES))


@pytest.fixture
def loops_once(quickest_python: Path, tmp_path: Path, warm: Warm) -> Loops:
    """In one environment: for what is the agent's alone."""
    return Loops(quickest_python, tmp_path, warm(quickest_python))


def order(path: Path) -> dict[int, str]:
    """Return the batch of each step, as it was made last."""
    found = {}
    for line in path.read_text().splitlines():
        epoch, step, indices = line.split(" ", 2)
        found[int(step)] = f"{epoch}: {indices}"
    return found


def test_an_own_loop_killed_twice_ends_bit_for_bit_where_it_would_have(loops: Loops) -> None:
    alone = loops.alone()
    assert alone.startswith("DIGEST")
    finished = loops.killed(2)
    assert finished.output == alone
    resumed = [attempt.list_reports("resumed") for attempt in loops.attempts[1:]]
    assert all(len(item) == 1 for item in resumed)
    assert [attempt.failures() for attempt in loops.attempts] == [[]] * 3
    assert [record.step for record in loops.attempts[-1].records()][-1] == 32
    assert len(list(loops.snapshots.iterdir())) == 2, "only the newest are kept, and nothing half written"


def test_no_snapshot_of_an_own_loop_lacks_gradients_that_wait_for_a_step_of_several_batches(loops_once: Loops) -> None:
    """It counts batches, and its optimizer steps once for three of them."""
    alone = loops_once.alone("--accumulate", "3")
    for after in (7, 8, 9):
        loops_once.run("--die-after", str(after), "--step-s", "0.05", "--accumulate", "3", every="0.0001")
        newest = loops_once.newest()
        assert newest is not None
        assert int(newest.stem.partition("-")[2]) % 3 == 0
    assert loops_once.run("--accumulate", "3").output == alone
    assert [attempt.failures() for attempt in loops_once.attempts] == [[]] * 4


def test_with_workers_the_order_is_the_same_and_no_batch_comes_twice(loops_once: Loops) -> None:
    loops_once.alone("--workers", "2", "--epochs", "2", "--order", str(loops_once.folder / "alone.txt"))
    loops_once.killed(1, "--workers", "2", "--epochs", "2", "--order", str(loops_once.folder / "killed.txt"))
    assert order(loops_once.folder / "killed.txt") == order(loops_once.folder / "alone.txt")


def test_with_another_batch_size_the_rest_of_the_epoch_is_made_once(loops_once: Loops) -> None:
    finished = loops_once.run("--die-after", "6", "--step-s", "0.05", "--order", str(loops_once.folder / "first.txt"))
    assert finished.code == -signal.SIGKILL
    newest = loops_once.newest()
    assert newest is not None
    saved_step = int(newest.stem.partition("-")[2])  # the kill may have come before the report of it
    rest = loops_once.folder / "rest.txt"
    loops_once.run("--batch", "3", "--epochs", "1", "--order", str(rest))
    first = [line.split()[2:] for line in (loops_once.folder / "first.txt").read_text().splitlines()][:saved_step]
    second = [line.split()[2:] for line in rest.read_text().splitlines()]
    seen = [index for batch in first + second for index in batch]
    assert sorted(seen, key=int) == [str(index) for index in range(30)]


def test_a_save_that_is_asked_for_is_a_snapshot_and_ends_the_loop(loops_once: Loops) -> None:
    finished = loops_once.run(command=at.COMMAND_SAVE_AND_STOP, every="0")
    assert finished.code == -signal.SIGTERM, finished.output
    (attempt,) = loops_once.attempts
    assert attempt.answer() == (at.ANSWER_SAVED, 5)
    (reported,) = attempt.list_reports("checkpoint_saved")
    assert (reported["step"], reported["epoch"], reported["requested"], reported["kind"]) == (1, -1, True, "snapshot")
    assert loops_once.run(every="0").output == loops_once.alone()


def test_a_state_that_is_not_finite_takes_no_sound_ones_place(loops_once: Loops) -> None:
    finished = loops_once.run("--poison-from", "9", "--step-s", "0.05")
    assert finished.code == 0, finished.output
    (attempt,) = loops_once.attempts
    (failed,) = attempt.list_reports("save_failed")
    assert "not finite" in failed["error"]
    newest = loops_once.newest()
    assert newest is not None
    assert int(newest.stem.partition("-")[2]) < 9


def test_a_disk_that_takes_no_more_is_reported_and_the_training_goes_on(loops_once: Loops) -> None:
    """A limit on the size of files stands for the disk: writing stops in the middle of the file."""
    script = (
        "import resource, runpy, sys; resource.setrlimit(resource.RLIMIT_FSIZE, (9000, 9000));"
        "sys.argv = sys.argv[1:]; runpy.run_path(sys.argv[0], run_name='__main__')"
    )
    attempt = Attempt(loops_once.folder / "full", cwd=loops_once.folder)
    attempt.make_recorder()
    finished = attempt.run(
        [loops_once.command[0], "-c", script, LOOP, "--step-s", "0.02"],
        OMP_NUM_THREADS="1",
        **{at.ENV_SNAPSHOTS: str(loops_once.snapshots), at.ENV_SNAPSHOT_EVERY: "0.01"},
    )
    assert finished.code == 0, finished.output
    assert finished.output == loops_once.alone()
    (failed,) = attempt.list_reports("save_failed")
    assert "File too large" in failed["error"]
    assert list(loops_once.snapshots.iterdir()) == []


def flip_stored_bit(path: Path) -> None:
    """Change a bit of the largest part of an archive: what lies between the parts is filled up, and not read."""
    with zipfile.ZipFile(path) as archive:
        largest = max(archive.infolist(), key=lambda info: info.file_size)
        stored = archive.read(largest)
    content = bytearray(path.read_bytes())
    content[content.index(stored) + len(stored) // 2] ^= 1
    path.write_bytes(content)


def test_a_damaged_snapshot_is_an_error_and_no_new_beginning(loops_once: Loops) -> None:
    loops_once.run("--die-after", "6", "--step-s", "0.05")
    newest = loops_once.newest()
    assert newest is not None
    flip_stored_bit(newest)
    finished = loops_once.run()
    assert finished.code == 1
    assert "does not match its checksum" in finished.output
    assert loops_once.attempts[-1].records() == []


YOLO = """
import glob, hashlib, json, os, signal, sys, time
from ultralytics import YOLO
made, die_after = 0, int(sys.argv[2])
def snapshot_in_mid_epoch():
    names = glob.glob(os.environ["ROCM_SUPERVISOR_SNAPSHOTS"] + "/step-*.pt")
    return names and int(max(names)[-15:-3]) % 4
def batch_ends(trainer):
    global made
    made += 1
    if die_after and made >= die_after:
        end = time.monotonic() + 30
        while not snapshot_in_mid_epoch() and time.monotonic() < end:
            time.sleep(0.01)
        if snapshot_in_mid_epoch():
            os.kill(os.getpid(), signal.SIGKILL)
def ends(trainer):
    digest = hashlib.sha256()
    for state in (trainer.model.state_dict(), trainer.ema.ema.state_dict(), *trainer.optimizer.state.values()):
        for value in state.values():
            digest.update(value.numpy().tobytes())
    print("DIGEST", digest.hexdigest(), flush=True)
model = YOLO("yolov8n.yaml")
model.add_callback("on_train_batch_end", batch_ends)
model.add_callback("on_train_end", ends)
model.train(**json.loads(sys.argv[1]))
"""


def results(run: Path) -> list[str]:
    """Return the rows of results.csv without the time."""
    lines = (run / "results.csv").read_text().splitlines()
    return [",".join(line.split(",")[:1] + line.split(",")[2:]) for line in lines]


def test_a_yolo_killed_in_mid_epoch_ends_bit_for_bit_where_it_would_have(
    train_python: Path, tmp_path: Path, warm: Warm
) -> None:
    """With mosaics out of the loader's buffer, gradients over two batches, warm-up and the end of mosaics behind it."""
    subprocess.run([str(train_python), str(HERE / "draw_images.py"), str(tmp_path / "data"), "11", "64"], check=True)
    fixed = {"imgsz": 64, "batch": 3, "workers": 0, "amp": False, "plots": False, "device": "cpu", "exist_ok": True}
    schedule = {"epochs": 3, "nbs": 6, "close_mosaic": 1, "warmup_epochs": 1.5}
    arguments = {**fixed, **schedule, "data": str(tmp_path / "data" / "data.yaml"), "project": str(tmp_path)}
    quiet = {"HOME": str(tmp_path), "YOLO_CONFIG_DIR": str(tmp_path), "OMP_NUM_THREADS": "1", "YOLO_OFFLINE": "true"}
    snapshots = tmp_path / "snapshots"
    snapshots.mkdir()

    def run(name: str, die_after: int) -> tuple[Attempt, Finished]:
        attempt = Attempt(
            tmp_path / f"{name}{len(list(tmp_path.glob(name + '*')))}", tmp_path, warm(train_python, *YOLO_MODULES)
        )
        attempt.make_recorder()
        # At each step until it is killed; from then on at some, since one takes as long as four steps.
        every = "0" if name == "whole" else "0.01" if die_after else "0.5"
        newest = max(snapshots.glob("step-*.pt"), default="")
        ours = {at.ENV_SNAPSHOTS: str(snapshots), at.ENV_SNAPSHOT_EVERY: every, at.ENV_RESUME_FROM: str(newest)}
        settings = json.dumps({**arguments, "name": f"run-{name}"})
        command: list[str | Path] = [train_python, "-c", YOLO, settings, str(die_after)]
        return attempt, attempt.run(command, **quiet, **ours)

    _, whole = run("whole", 0)
    assert whole.code == 0, whole.output
    killed, finished = run("killed", 3)
    assert finished.code == -signal.SIGKILL, finished.output
    attempt, finished = run("killed", 0)
    assert finished.code == 0, finished.output
    assert killed.failures() == attempt.failures() == []
    digest = [line for line in whole.output.splitlines() if line.startswith("DIGEST")]
    assert digest[0] in finished.output.splitlines()
    assert results(tmp_path / "run-killed") == results(tmp_path / "run-whole")
    (resumed,) = attempt.list_reports("resumed")
    assert resumed["step"] % 4, "in mid-epoch"
    assert attempt.records()[0].step == resumed["step"] + 1


SLOW_DISK = """
import os, threading
saved, synced = threading.Event(), os.fsync
def fsync(file):
    saved.wait(5)
    synced(file)
os.fsync = fsync
def model_is_saved(trainer):
    saved.set()
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_yolo_killed_at_its_first_save_ends_bit_for_bit_where_it_would_have(
    current_python: Path, tmp_path: Path, warm: Warm
) -> None:
    """An exact state lies on the disk by then, however slow that is, with gradients that wait for the next epoch."""
    subprocess.run([str(current_python), str(HERE / "draw_images.py"), str(tmp_path / "data"), "11", "64"], check=True)
    fixed = {"imgsz": 64, "batch": 3, "workers": 0, "amp": False, "plots": False, "device": "cpu", "exist_ok": True}
    schedule = {"epochs": 2, "nbs": 6, "close_mosaic": 1, "warmup_epochs": 1.5}
    arguments = {**fixed, **schedule, "data": str(tmp_path / "data" / "data.yaml"), "project": str(tmp_path)}
    quiet = {"HOME": str(tmp_path), "YOLO_CONFIG_DIR": str(tmp_path), "OMP_NUM_THREADS": "1", "YOLO_OFFLINE": "true"}
    snapshots = tmp_path / "snapshots"
    snapshots.mkdir()

    def run(name: str, run_name: str, program: str, newest: str = "") -> tuple[Attempt, Finished]:
        attempt = Attempt(tmp_path / name, tmp_path, warm(current_python, *YOLO_MODULES))
        attempt.make_recorder()
        every = "0" if name == "whole" else "300"
        ours = {at.ENV_SNAPSHOTS: str(snapshots), at.ENV_SNAPSHOT_EVERY: every, at.ENV_RESUME_FROM: newest}
        settings = json.dumps({**arguments, "name": run_name})
        return attempt, attempt.run([current_python, "-c", program, settings, "0"], **quiet, **ours)

    _, whole = run("whole", "whole", YOLO)
    assert whole.code == 0, whole.output
    killing = YOLO.replace("model.train(", 'model.add_callback("on_model_save", model_is_saved)\nmodel.train(')
    killed, finished = run("killed", "run", SLOW_DISK + killing)
    assert finished.code == -signal.SIGKILL, finished.output
    (newest,) = snapshots.glob("step-*.pt")
    assert newest.name == "step-000000000004.pt"
    attempt, finished = run("resumed", "run", YOLO, str(newest))
    assert finished.code == 0, finished.output
    assert killed.failures() == attempt.failures() == []
    assert [entry["step"] for entry in attempt.list_reports("resumed")] == [4]
    (digest,) = [line for line in whole.output.splitlines() if line.startswith("DIGEST")]
    assert digest in finished.output.splitlines()
    assert results(tmp_path / "run") == results(tmp_path / "whole"), "with the learning rate of the warm-up"
