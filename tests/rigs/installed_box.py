"""A box in which `supervisorctl setup` ran for the user ann, with a stand-in for the daemon under the real unit.

The stand-in lives in the real sandbox, says READY and WATCHDOG, takes the control socket from systemd, ends its
trainings when it is stopped (not when it is restarted), and runs the Python that it is sent: so a test asks what the
daemon can do.
"""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.rigs.systemd_box import OWN_PLACES, Completed, SystemdBox, unavailable

ROOT = Path(__file__).resolve().parents[2]
OWNER = "ann"
PYTHON = Path(sys.executable)
STATE = "/var/lib/rocm-supervisor"
SETUP = "import sys; from supervisor.cli.setup.command import command; command(prog_name='supervisorctl setup')"
ASK = """\
import os, socket, sys
with socket.socket(socket.AF_UNIX) as s:
    s.settimeout(20); s.connect("/run/rocm-supervisor/control.sock")
    s.sendall(sys.stdin.buffer.read()); s.shutdown(socket.SHUT_WR)
    sys.stdout.buffer.write(b"".join(iter(lambda: s.recv(65536), b"")))
"""
STAND_IN = """\
import contextlib, io, os, signal, sys, time, traceback
from pathlib import Path
from supervisor.control.listen import from_systemd
from supervisor.daemon.process.systemd import Notifier
from supervisor.daemon.process.systemd import stop_is_restart
from supervisor.runner.attempt_folder import prepare, read_exit, read_shim
from supervisor.runner.launcher import LaunchError
from supervisor.runner.units import UnitLauncher, available
STATE = Path("/var/lib/rocm-supervisor")
notifier = Notifier.from_environment()
words = Path(os.environ.get("WORDS", STATE / "words"))
units = UnitLauncher(user=False, state=STATE)

def begin(slot, number, script, grace_s=5):
    folder = prepare(STATE, slot, number, argv=["/bin/sh", "-c", script], cwd="/home/ann", env={},
                     grace_s=grace_s, save_s=1, group=(STATE / "jobs").stat().st_gid)
    units.launch(slot, folder)
    return folder

def gone(slot, folder, limit_s=10):
    deadline = time.perf_counter() + limit_s
    while units.alive(slot, folder) and time.perf_counter() < deadline:
        time.sleep(0.02)
    return not units.alive(slot, folder)

def word(text):
    with words.open("a") as file:
        print(f"{time.perf_counter():.3f}", text, file=file)

def end(*_):
    notifier.stopping()
    restart = stop_is_restart()
    word("stop for a restart" if restart else "stop")
    for current in () if restart else STATE.glob("jobs/*/current"):
        slot, folder = current.parent.name, current.resolve()
        if units.signal(slot, folder, signal.SIGTERM):
            word(f"{slot} {'ended' if gone(slot, folder) else 'still runs'}")
    sys.exit(0)

def reload(*_):
    notifier.reloading(time.monotonic_ns() // 1000)
    word("reload")
    notifier.ready()

signal.signal(signal.SIGTERM, end)
signal.signal(signal.SIGHUP, reload)
control = from_systemd(os.environ)
assert control is not None, "no socket from systemd"
control.settimeout(notifier.watchdog_interval_s)
notifier.ready()
notifier.status("the stand-in answers")
word("start")
while True:
    notifier.watchdog()
    with contextlib.suppress(TimeoutError):
        client, _ = control.accept()
        code = b"".join(iter(lambda: client.recv(65536), b"")).decode()
        said = io.StringIO()
        with contextlib.redirect_stdout(said):
            try:
                exec(code, dict(globals()))
            except Exception:
                traceback.print_exc(file=said)
        with contextlib.suppress(OSError), client:
            client.sendall(said.getvalue().encode())
"""
DROP_IN = f"""\
[Service]
ExecStart=
ExecStart={PYTHON} /opt/stand-in.py
Environment=PYTHONPATH={ROOT} PYTHONDONTWRITEBYTECODE=1
RestartSec=100ms
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class InstalledBox:
    """The box and what tests do with what is installed in it."""

    box: SystemdBox

    def setup(self, words: str, *, user: str | None = None, sudo_by: str | None = None) -> Completed:
        """Run `supervisorctl setup WORDS` inside, as root, as root through the sudo of somebody, or as `user`."""
        more = {"HOME": f"/home/{user}"} if user else {"SUDO_USER": sudo_by} if sudo_by else {}
        return self.box.run(
            f"{PYTHON} -c {shlex.quote(SETUP)} {words}", user=user, environment={"PYTHONPATH": str(ROOT), **more}
        )

    def ask(self, code: str, *, timeout_s: float = 120.0) -> str:
        """Have the stand-in run Python in its sandbox and return what it printed, or its traceback."""
        return self.box.run(f"{PYTHON} -c {shlex.quote(ASK)}", stdin=code, timeout_s=timeout_s, check=True).output

    def words(self) -> list[str]:
        """Return what the stand-in wrote down so far, without the times."""
        lines = self.box.run(f"cat {STATE}/words 2>/dev/null").output.splitlines()
        return [line.partition(" ")[2] for line in lines]


def open_the_way(box: SystemdBox) -> None:
    """Let every user of the box read what the tests need there; what is shown read-only is as it is."""
    for end in needed():
        folders = " ".join(shlex.quote(str(folder)) for folder in (end, *end.parents[:-1]))
        box.run(f"find {folders} -maxdepth 0 ! -perm -o=rx -exec chmod o+rx {{}} +", check=True)


def needed() -> list[Path]:
    """Return where this checkout, the interpreter that runs the tests, and those that train (if there are any) lie."""
    needed = [ROOT, Path(sys.prefix), Path(sys.base_prefix)]
    for variable in ("ROCM_SUPERVISOR_TRAIN_PYTHON", "ROCM_SUPERVISOR_OWNER_PYTHON"):
        if python := os.environ.get(variable):
            needed += [Path(python).parents[1], Path(python).resolve().parents[1]]
    return list(dict.fromkeys(needed))


def elsewhere() -> dict[Path, str]:
    """Return what has to be shown because the box has a file system of its own there, or the machine has another."""
    root = Path("/").stat().st_dev
    return {
        path: str(path)
        for path in needed()
        if path.stat().st_dev != root or any(path.is_relative_to(own) for own in OWN_PLACES)
    }


@contextmanager
def installed_box(*, keep: Iterable[Path] | Mapping[Path, str] = ()) -> Iterator[InstalledBox]:
    """Boot a box, install for ann and have the stand-in ready to be started as rocm-supervisor.service."""
    with SystemdBox(keep=keep, show=elsewhere()) as box:
        open_the_way(box)
        box.run(f"useradd --create-home {OWNER}; useradd --create-home bob", check=True)
        daemon = PYTHON.parent / "rocm-supervisord"
        if not daemon.exists():
            box.write(str(daemon), "#!/bin/sh\nexit 78\n", 0o755)
        box.write("/opt/stand-in.py", STAND_IN)
        item = InstalledBox(box=box)
        done = item.setup(f"--owner {OWNER}")
        assert done.ok, done.output
        box.write("/etc/systemd/system/rocm-supervisor.service.d/stand-in.conf", DROP_IN)
        box.run("systemctl daemon-reload", check=True)
        yield item


def may_boot() -> str | None:
    """Return why tests with a box have to be skipped, or None."""
    return unavailable() or (None if os.access("/usr/lib/polkit-1/polkitd", os.X_OK) else "polkitd is not installed")
