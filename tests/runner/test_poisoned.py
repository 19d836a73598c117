"""Real checkpoints of a real training, spoilt in every way: none is proven, and what is sound is."""

from __future__ import annotations

import functools
import os
import subprocess
import sys
from pathlib import Path

import pytest
from checkpoints_written import SPOILT

from supervisor.agent import prove
from supervisor.core.checkpoints.continuity import judge_profile
from supervisor.core.checkpoints.tensor_stats import Profile, profile_of


@functools.cache
def measure_of(before: Path) -> Profile:
    found = profile_of(prove.prove(str(before))["profile"])
    assert found is not None
    return found


def reason(path: Path, before: Path) -> str | None:
    """Return why a checkpoint is rejected beside the one before it; None where it is proven."""
    answer = prove.prove(str(path))
    if answer["verdict"] == "rejected":
        return str(answer["reason"])
    profile = profile_of(answer["profile"])
    assert profile is not None
    return judge_profile(profile, [measure_of(before)])[0]


@pytest.mark.train
def test_the_next_epoch_of_a_real_training_is_its_continuation(trained: Path) -> None:
    assert reason(trained / "after.pt", trained / "before.pt") is None


@pytest.mark.train
@pytest.mark.parametrize("kind", SPOILT)
def test_no_checkpoint_that_was_spoilt_is_proven(trained: Path, kind: str) -> None:
    made = sorted(trained.glob(f"{kind}-*.pt"))
    assert len(made) == SPOILT[kind]
    assert [item.name for item in made if reason(item, trained / "before.pt") is None] == []
    assert not (trained / "trace").exists(), "a hostile one was executed"


@pytest.mark.train
def test_a_checkpoint_cut_at_any_byte_is_rejected(trained: Path, tmp_path: Path) -> None:
    """Every byte of its head and of its last part, and some in between, as a killed writer leaves it."""
    whole = (trained / "after.pt").read_bytes()
    size = len(whole)
    cuts = [*range(200), *range(200, size - 600, size // 20), *range(size - 600, size)]
    path = tmp_path / "cut.pt"
    path.write_bytes(whole)
    for cut in sorted(cuts, reverse=True):
        os.truncate(path, cut)
        assert prove.prove(str(path))["verdict"] == "rejected", cut


@pytest.mark.train
def test_an_in_place_write_that_was_cut_is_rejected(trained: Path, tmp_path: Path) -> None:
    """The new bytes up to the cut, the old ones behind it: so a writer that does not truncate first leaves it."""
    new, old = (trained / "after.pt").read_bytes(), (trained / "before.pt").read_bytes()
    path = tmp_path / "last.pt"
    for cut in range(1, min(len(new), len(old)), len(new) // 20):
        torn = new[:cut] + old[cut:]
        path.write_bytes(torn)
        assert torn in (new, old) or prove.prove(str(path))["verdict"] == "rejected", cut


CONFINED = """
import os, resource, socket, subprocess, sys
sys.path.insert(0, sys.argv[1])
import prove
known = open("/proc/self/status", "rb")
prove.confine(1 << 30, 60)
tried = {
    "open a file": lambda: open("/etc/hostname"),
    "open a home": lambda: os.listdir(os.path.expanduser("~")),
    "write a file": lambda: os.open(sys.argv[2], os.O_WRONLY | os.O_CREAT),
    "open a socket": lambda: socket.socket(),
    "make a pair of sockets": lambda: socket.socketpair(),
    "start a program": lambda: os.execv("/bin/true", ["true"]),
    "take back its limits": lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (100, 100)),
    "take all memory": lambda: bytearray(2 << 30),
}
done = []
for what, work in tried.items():
    try:
        work()
    except (OSError, ValueError, MemoryError):
        continue
    done.append(what)
sys.stdout.write("could: %r\\n" % (done,))
sys.stdout.write(known.read().decode())
"""


def test_the_prover_has_given_everything_away_before_it_reads(tmp_path: Path) -> None:
    folder = str(Path(prove.__file__).resolve().parents[1])
    command = [sys.executable, "-I", "-S", "-c", CONFINED, folder, str(tmp_path / "written")]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.startswith("could: []\n")
    assert "NoNewPrivs:\t1" in done.stdout
    assert not (tmp_path / "written").exists()
