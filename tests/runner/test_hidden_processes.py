"""Where /proc hides other users' processes (hidepid), a training of another user is not taken for ended."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from supervisor.core import attempt_files as names
from supervisor.runner import process_table

pytestmark = [pytest.mark.mounts, pytest.mark.slow]

CANNOT = 77
WATCHES = f"""
import ctypes, os, queue, sys
from supervisor.runner import process_table
from pathlib import Path
from types import SimpleNamespace
from supervisor.daemon.doctor import DaemonChecks
from supervisor.runner.attempt_folder import is_hidden, is_shim_hidden
from supervisor.runner.exit_watch import ExitWatch

library, (pid, ticks), folder = ctypes.CDLL(None, use_errno=True), map(int, sys.argv[1:3]), Path(sys.argv[3])
own, private = 0x00020000, 1 << 18 | 16384
if library.unshare(own) or library.mount(b"none", b"/", None, private, None):
    sys.exit({CANNOT})
if library.mount(b"proc", b"/proc", b"proc", 0, b"hidepid=2"):
    sys.exit({CANNOT})
process_table.boot_id(), is_shim_hidden(folder)  # imports what that user may not read
os.setgroups([])
os.setgid(65534)  # who is in group 0 sees all
os.setuid(65534)
if process_table.read_process(pid) is not None:
    sys.exit({CANNOT})
gone = queue.SimpleQueue()
watch = ExitWatch(gone.put)
watch.add("hidden", 1, pid, ticks)
watch.add("ended", 1, 4194303, 1)
hidden = (is_hidden(pid), is_hidden(os.getpid()), is_hidden(4194303))
print(gone.get().job, *hidden, is_shim_hidden(folder), is_shim_hidden(folder.parent), flush=True)
live = (("night", 1, pid), ("other", 1, os.getpid()))
checks = DaemonChecks(SimpleNamespace(telemetry=SimpleNamespace(live=lambda: live)))
print(*(line.name for line in checks._check_hidden()), flush=True)
print(gone.get().job, flush=True)
watch.close()
"""


@pytest.fixture
def folder() -> Iterator[Path]:
    """The folder of an attempt that other users may read."""
    with tempfile.TemporaryDirectory() as made:
        Path(made).chmod(0o755)
        (Path(made) / "1/run").mkdir(parents=True)
        yield Path(made) / "1"


def test_the_shim_of_another_user_is_watched_though_proc_hides_it(folder: Path) -> None:
    training = subprocess.Popen(["sleep", "600"])
    with training:
        process = process_table.read_process(training.pid)
        assert process is not None
        note = {"pid": training.pid, "start_ticks": process.start_ticks, "boot_id": process_table.boot_id()}
        (folder / names.SHIM).write_text(json.dumps({"version": 1, **note}))
        words = [sys.executable, "-c", WATCHES, str(training.pid), str(process.start_ticks), str(folder)]
        with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as daemon:
            assert daemon.stdout is not None
            first, doctor = daemon.stdout.readline(), daemon.stdout.readline()
            training.kill()
            second = daemon.stdout.readline()
        if daemon.returncode == CANNOT:
            pytest.skip("no /proc that hides processes can be mounted here")
        assert first.split() == ["ended", "True", "False", "False", "True", "False"]
        assert second.split() == ["hidden"]
        assert doctor.split() == ["job", "night"], "and not the job whose processes are seen"
