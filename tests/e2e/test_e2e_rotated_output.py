"""A log rotation takes a training's output.log: either way the daemon sees what is printed, and keeps it."""

from __future__ import annotations

import shutil
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from house import House

TRAINING = """
import sys, time
from pathlib import Path
folder = Path(sys.argv[1])
for step in range(1, 100000):
    if (folder / "crash").exists():
        print("torch.OutOfMemoryError: HIP out of memory. Tried to allocate 2.00 GiB", flush=True)
        (folder / "crash").rename(folder / "crashed")
        sys.exit(1)
    while (folder / "hang").exists():
        time.sleep(0.05)
    print(f"step {step}/100000 loss 0.5", flush=True)
    time.sleep(0.05)
"""
"""Known by what it prints alone: it runs under an interpreter that takes no agent."""


def rename(output: Path) -> None:
    """Rotate as logrotate does by itself: the training goes on writing to the renamed file."""
    output.rename(output.with_name("output.log.1"))
    output.touch()


def copy_and_truncate(output: Path) -> None:
    """Rotate as logrotate does with `copytruncate`."""
    shutil.copyfile(output, output.with_name("output.log.1"))
    with output.open("r+b") as file:
        file.truncate(0)


both_ways = pytest.mark.parametrize("rotate", [rename, copy_and_truncate])


def begin(home: House, **rules: str) -> Path:
    """Start such a training; return its output once the daemon has read some of it."""
    script = home.folder / "training.py"
    script.write_text(TRAINING)
    command = ["python3", "-I", "-S", str(script), str(home.folder)]
    home.write(home.job_of("one", command, "budget.backoff_s = [0.0]\n", **rules))
    home.start()
    home.until(lambda: steps_seen(home) >= 10, 30, "the daemon to read what is printed")
    return home.state / "jobs" / "one" / "1" / "run" / "output.log"


def steps_seen(home: House) -> int:
    """Return the last step that the daemon has folded into its copy of the output."""
    try:
        text = (home.state / "jobs" / "one" / "1" / "output.txt").read_text()
    except FileNotFoundError:
        return 0
    steps = [line.partition("/")[0].rpartition(" ")[2] for line in text.splitlines() if line.startswith("step ")]
    return int(steps[-1]) if steps else 0


@both_ways
@pytest.mark.calm(reason="a silence of a few seconds would be found")
def test_a_training_that_is_known_by_its_output_goes_on_over_a_rotation(
    home: House, rotate: Callable[[Path], None]
) -> None:
    output = begin(home, stall="output_limit_s = 2\nlearn = false")
    for _ in range(3):
        rotate(output)
        seen = steps_seen(home)
        home.until(lambda least=seen + 60: steps_seen(home) >= least, 30, "what is printed after it")  # type: ignore[misc]
    assert home.incidents() == []
    text = (home.state / "jobs" / "one" / "1" / "output.txt").read_text()
    steps = [int(line.partition("/")[0].rpartition(" ")[2]) for line in text.splitlines()]
    assert steps == list(range(1, len(steps) + 1)), "each line once"


@both_ways
def test_the_words_of_an_exception_are_seen_that_were_rotated_away_before_they_were_read(
    home: House, rotate: Callable[[Path], None]
) -> None:
    output = begin(home)
    assert home.daemon is not None
    home.daemon.send_signal(signal.SIGSTOP)
    (home.folder / "crash").touch()
    home.until((home.folder / "crashed").exists, 20, "the exception", daemon=False)
    rotate(output)
    home.daemon.send_signal(signal.SIGCONT)
    home.until(lambda: home.incidents() != [], 30, "the crash to be found")
    assert home.incidents()[0]["fault"] == "oom_gpu", home.incidents()


@both_ways
def test_the_evidence_has_what_was_printed_before_a_rotation(home: House, rotate: Callable[[Path], None]) -> None:
    output = begin(home, stall="output_limit_s = 2\nlearn = false")
    (home.folder / "hang").touch()
    size = -1

    def rests() -> bool:
        nonlocal size
        before, size = size, output.stat().st_size
        return size == before

    home.until(rests, 20, "the training to print no more")
    last = output.read_bytes().decode().splitlines()[-1]
    rotate(output)
    (home.folder / "crash").touch()
    home.until(lambda: home.incidents() != [], 40, "the stall to be found")
    (home.folder / "hang").unlink()
    home.until(lambda: home.incidents()[0]["evidence"] is not None, 30, "the evidence")
    kept = home.state / "jobs" / "one" / "1" / "evidence"
    texts = [path.read_text() for path in kept.glob("*/output.txt")]
    assert any(last in text for text in texts), (last, texts)
