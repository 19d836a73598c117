"""A training that its own environment cannot run goes on in another one, where its checkpoint was proven to load."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from house import House

SCRIPT = Path(__file__).with_name("environments_by_hand.py")
REMEDIES = '[jobs.one.remedies]\ncrash = ["other_environment"]\nhelped_after_steps = 20\n'
BUDGET = "[jobs.one.budget]\nbackoff_s = [0.0]\n"


def configure(home: House, python: Path, environments: str, variables: str = "", *, breaks: str = "2.") -> None:
    """Write a job that the torch whose version begins with `breaks` cannot run beyond step 20."""
    command = [str(python), str(SCRIPT), str(home.folder)]
    resume = f"[jobs.one.resume]\ncommand = {json.dumps([*command, '{checkpoint}'])}\n"
    saved = f'[jobs.one.checkpoints]\npaths = ["{home.folder}/last.pt"]\n'
    path = f"{home.folder}:/usr/bin:/bin"
    env = f'snapshot_every_s = 0\nenv = {{ BREAKS = "{breaks}", OMP_NUM_THREADS = "1", PATH = "{path}"{variables} }}'
    home.write(home.job_of("one", command, env) + resume + saved + REMEDIES + BUDGET + environments)


def place(name: str, python: Path | str) -> str:
    return f'[jobs.one.environments.{name}]\npython = "{python}"\nenv = {{ PLACE = "{name}" }}\n'


@pytest.mark.train
def test_the_next_environment_goes_on_from_the_checkpoint_and_one_that_cannot_load_it_is_skipped(
    home: House, current_python: Path, owner_python: Path
) -> None:
    absent, without_torch = home.folder / "absent/bin/python", home.folder / "bare"
    without_torch.write_text('#!/bin/sh\nexec /usr/bin/env python3 -S -I "$@"\n')
    without_torch.chmod(0o755)
    others = place("gone", absent) + place("bare", without_torch) + place("older", owner_python)
    configure(home, current_python, others)
    home.start()
    job = home.phase("one", "finished", limit_s=60)
    assert job["attempt"] == 2, "an environment that fails its proof is no attempt"
    logged = home.ctl("logs", "one").stdout
    assert "from step 10, in older" in logged, logged
    history = home.ctl("history", "one").stdout
    assert "another environment: gone; skipped: it could not be started there" in history, history
    assert "another environment: bare; skipped: last.pt does not load there: torch not imported" in history, history
    assert "other_environment" in home.ctl("show", "one").stdout + home.ctl("remedies", "one").stdout
    report = json.loads(home.ctl("remedies", "one", "--json").stdout)
    assert [(item["attempt"], item["remedy"], item["outcome"]) for item in report["tried"]] == [
        (2, "other_environment", "helped"),
        (2, "other_environment", "skipped"),
        (2, "other_environment", "skipped"),
    ]
    assert "last.pt does not load there: torch not imported" in report["tried"][1]["reason"]
    assert "it could not be started there" in report["tried"][2]["reason"]
    (incident,) = home.incidents("one")
    assert incident["outcome"] == "resumed"


MACHINE = """#!/bin/sh
exec unshare --mount sh -c 'umount -R /sys/fs/cgroup
mount -t cgroup2 none /sys/fs/cgroup && exec "$@"' sh {program} "$@"
"""
"""A machine with cgroup v2 alone, which podman's containers without cgroups of their own need."""


def why_no_podman() -> str | None:
    missing = [tool for tool in ("podman", "crun", "unshare") if shutil.which(tool) is None]
    if missing or os.geteuid() != 0:
        return f"not installed: {', '.join(missing)}" if missing else "needs root for a cgroup v2 of its own"
    return None


@pytest.fixture
def short_folder() -> Iterator[Path]:
    """Where podman keeps what is the test's: of longer paths conmon's sockets know nothing, and each end takes 20 s."""
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        yield Path(folder)


@pytest.mark.train
@pytest.mark.skipif(why_no_podman() is not None, reason=str(why_no_podman()))
def test_a_training_goes_on_in_a_container_with_its_agent_and_nothing_of_it_is_left(
    home: House, short_folder: Path, current_python: Path, owner_python: Path
) -> None:
    """The image is empty: its programs are the machine's, shown."""
    storage, folder = short_folder / "storage.conf", home.folder / "bin"
    storage.write_text(
        f'[storage]\ndriver = "vfs"\ngraphroot = "{short_folder}/graph"\nrunroot = "{short_folder}/run"\n'
    )
    with tarfile.open(home.folder / "image.tar", "w") as archive:
        archive.addfile(tarfile.TarInfo("etc/empty"))
    podman = {**os.environ, "CONTAINERS_STORAGE_CONF": str(storage)}
    subprocess.run(["podman", "import", home.folder / "image.tar", "local/torch:1"], env=podman, check=True)
    folder.mkdir()
    (folder / "rocm-supervisorctl").symlink_to(home.bin / "rocm-supervisorctl")
    (folder / "rocm-supervisord").write_text(MACHINE.format(program=home.bin / "rocm-supervisord"))
    (folder / "rocm-supervisord").chmod(0o755)
    home.bin = folder
    shown = [f"{place}:{place}:ro" for place in ("/usr", "/bin", "/lib", "/lib64")]
    shown += [str(SCRIPT.parent), str(owner_python.parents[1]), str(owner_python.resolve().parents[1])]
    box = f'[jobs.one.environments.box]\nimage = "local/torch:1"\nmounts = {json.dumps(shown)}\n'
    box += f'env = {{ PLACE = "box", PATH = "{owner_python.parent}:/usr/bin:/bin" }}\n'
    configure(home, current_python, box, f', CONTAINERS_STORAGE_CONF = "{storage}"')
    home.start()
    job = home.phase("one", "finished", "failed", limit_s=90)
    assert (job["phase"], job["attempt"]) == ("finished", 2), home.ctl("history", "one").stdout
    assert job["step"] == 60, "the agent reports from within"
    home.until(lambda: not (home.state / "jobs/one/container.json").exists(), 30, "the container to be removed")
    home.until(lambda: "from step 10, in box" in home.ctl("logs", "one").stdout, 10, "the output from within")
    left = subprocess.run(["podman", "ps", "-aq"], env=podman, check=True, capture_output=True, text=True)
    assert left.stdout == ""


PODMAN = """#!/bin/sh
shift  # --cgroup-manager
if [ "$1" = rm ]; then
    if [ -e {folder}/hangs ]; then exec sleep 1000; fi
    echo "$@" >> {folder}/removed
    exit 0
fi
while [ "$1" != local/torch:1 ]; do
    case "$1" in *-proof) [ ! -e {folder}/proof_hangs ] || exec sleep 1000;; esac
    shift
done
shift 6  # the image, the shell that is the first process, python3
exec {python} "$@"
"""


def place_box(home: House, python: Path) -> str:
    """A container of a podman that only says what a real one would be asked; tests/systemd has a real one."""
    podman = home.folder / "podman"
    podman.write_text(PODMAN.format(folder=home.folder, python=python))
    podman.chmod(0o755)
    box = '[jobs.one.environments.box]\nimage = "local/torch:1"\n'
    return box + 'env = { PLACE = "box", BREAKS = "" }\n'


@pytest.mark.long
@pytest.mark.train
def test_a_container_engine_that_hangs_is_ended_and_its_environment_skipped(home: House, quickest_python: Path) -> None:
    (home.folder / "proof_hangs").touch()
    configure(home, quickest_python, place_box(home, quickest_python), breaks="")
    home.start()
    job = home.phase("one", "failed", limit_s=300)
    assert job["attempt"] == 2, "the second is a plain restart"
    assert "another environment: box; skipped: " in home.ctl("history", "one").stdout
    assert "it did not end within 120 s" in home.ctl("history", "one").stdout


@pytest.mark.long
@pytest.mark.train
def test_nothing_starts_before_the_engine_says_that_the_container_is_gone(home: House, quickest_python: Path) -> None:
    kept = home.state / "jobs/one/container.json"
    (home.folder / "hangs").touch()
    configure(home, quickest_python, place_box(home, quickest_python), breaks="")
    home.start()
    home.phase("one", "failed", limit_s=120)
    home.ctl("start", "one")
    why = "whether a container of the job runs is not known"
    home.until(lambda: why in home.log.read_text(), 120, "the wait")
    home.until(lambda: why in home.ctl("history", "one").stdout, 30, "the wait in the history")
    started = sorted(path.parent.name for path in (home.state / "jobs/one").glob("*/output.txt"))
    assert started == ["1", "2"], started
    assert kept.exists()
    (home.folder / "hangs").unlink()
    home.until(lambda: not kept.exists(), 120, "the container to be removed")
    assert "rm --force --ignore --time=0 rocm-supervisor-one-" in (home.folder / "removed").read_text()
    home.phase("one", "failed", "finished", limit_s=120)
    home.until(lambda: not list(kept.parent.glob("environment-*")), 30, "the folder of the removal to go")
    assert (kept.parent / "current").resolve().name.isdecimal()
