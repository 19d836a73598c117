"""The installations that are attacked: a daemon in the foreground, and the units in a systemd with three users."""

from __future__ import annotations

import json
import os
import shlex
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
from attack_plan import Action, to_script

from tests.e2e.house import House
from tests.rigs.installed_box import PYTHON
from tests.systemd.night import HOME, UNIT, Night, night

HERE = Path(__file__).resolve().parent
SECRET = f"secret{os.urandom(12).hex()}"
PLANT = """\
mkdir -p {outside}/folder; cd {outside}
echo kept >folder/kept.txt; echo {secret} >secret; seq 100 >canary
mknod zero c 1 5; mknod full c 1 7; chmod 666 zero full
"""
PLANT_FOR_DAEMON = (
    "cd {outside}; chown -R rocm-supervisor: folder canary secret; chmod 700 folder; chmod 600 canary secret"
)
"""Only the daemon could read or write them: whatever happens to them went through it."""


def settings(where: str, outside: str, socket: str, per_s: float, *, tame: bool) -> dict[str, object]:
    """Return what a hostile training or an intruder is told, by paths as it sees them."""
    return {
        "script": f"{where}/script", "progress": f"{where}/progress", "said": f"{where}/said", "pace_s": 1 / per_s,
        "saves": f"{where}/saves", "canary": f"{outside}/canary", "canary_folder": f"{outside}/folder",
        "secret": f"{outside}/secret", "socket": socket, "daemon_pid": 0, "tame": tame,
    }  # fmt: skip


class Foreground(House):
    """A daemon in the foreground; trainings, shims and daemon are one user."""

    secret = SECRET
    one_user = True
    python = sys.executable

    @property
    def outside(self) -> Path:
        """See `Site`."""
        return self.folder / "outside"

    @property
    def place_of_trainings(self) -> str:
        """The folder as the trainings see it."""
        return str(self.folder)

    def plant(self, actions: Sequence[Action], per_s: float) -> None:
        """Lay out what the hostile training is told, and what may not be touched."""
        os.system(PLANT.format(outside=self.outside, secret=SECRET))
        (self.folder / "script").write_text(to_script(actions))
        reported = settings(str(self.folder), str(self.outside), str(self.state / "control.sock"), per_s, tame=True)
        (self.folder / "hostile.json").write_text(json.dumps(reported))

    def begin(self) -> None:
        """Start the daemon."""
        self.start()
        self.tell_pid()

    def tell_pid(self) -> None:
        """Tell the hostile training which process the daemon is; it learns it with its next attempt."""
        assert self.daemon is not None
        path = self.folder / "hostile.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), "daemon_pid": self.daemon.pid}))

    def replace_daemon(self) -> None:
        """Kill the daemon and have another."""
        self.kill()
        self.start(wait=False)
        self.tell_pid()

    def daemon_process(self) -> psutil.Process | None:
        """See `Site`."""
        assert self.daemon is not None
        return psutil.Process(self.daemon.pid) if self.daemon.poll() is None else None

    def log_size_bytes(self) -> int:
        """See `Site`."""
        return self.log.stat().st_size

    def log_text(self) -> str:
        """See `Site`."""
        return self.log.read_text(errors="replace")

    def database_size_bytes(self) -> int:
        """See `Site`."""
        return sum(path.stat().st_size for path in self.state.glob("supervisor.db*"))

    def strangers(self) -> list[str]:
        """See `Site`: all are one user here."""
        return []


class Installed(Night):
    """The units in a booted systemd: trainings of ann, a daemon of its own user, carol in its group, bob in none."""

    secret = SECRET
    one_user = False
    python = str(PYTHON)
    place_of_trainings = f"{HOME}/attack"
    outside_inside = "/srv/outside"
    intruders = ("carol", "bob")

    @property
    def outside(self) -> Path:
        """See `Site`."""
        return self.inside(self.outside_inside)

    def plant(self, actions: Sequence[Action], per_s: float) -> None:
        """Lay out what the hostile training and the intruders are told, and what may not be touched."""
        self.folder = self.inside(self.place_of_trainings)
        self.box.run("useradd --create-home --groups rocm-supervisor carol", check=True)
        plant = PLANT.format(outside=self.outside_inside, secret=SECRET)
        self.box.run(plant + PLANT_FOR_DAEMON.format(outside=self.outside_inside), check=True)
        socket = "/run/rocm-supervisor/control.sock"
        for user in ("ann", *self.intruders):
            where = f"/home/{user}/attack"
            self.box.write(f"{where}/script", to_script(actions))
            reported = settings(where, self.outside_inside, socket, per_s, tame=False)
            self.box.write(f"{where}/hostile.json", json.dumps(reported))
            self.box.run(f"chown -R {user}: {where}", check=True)

    def begin(self) -> None:
        """Start the daemon, and the intruders."""
        super().begin()
        self._pid = self.shown("MainPID")
        for user in self.intruders:
            words = [self.python, str(HERE / "intruder.py"), f"/home/{user}/attack/hostile.json", self.place]
            unit = f"systemd-run --quiet --collect --unit=intruder-{user} --uid={user} --slice=intruders"
            self.box.run(f"{unit} --setenv=PYTHONDONTWRITEBYTECODE=1 {shlex.join(words)}", check=True)

    def replace_daemon(self) -> None:
        """Kill the daemon; systemd starts another."""
        self.systemctl(f"kill --signal=KILL {UNIT}")
        self.another_daemon(self._pid, 30)
        self._pid = self.shown("MainPID")

    def daemon_process(self) -> psutil.Process | None:
        """See `Site`; one that systemd restarted by itself is no daemon that was meant."""
        if self.shown("MainPID") != self._pid:
            return None
        return next((process for process, pid in self._processes() if pid == int(self._pid)), None)

    def log_size_bytes(self) -> int:
        """See `Site`."""
        return int(self.box.run(f"journalctl -u {UNIT} -o cat | wc -c", check=True).output)

    def log_text(self) -> str:
        """See `Site`."""
        return self.box.run(f"journalctl -u {UNIT} -o cat -n 200", check=True).output

    def database_size_bytes(self) -> int:
        """See `Site`."""
        return sum(path.stat().st_size for path in self.state.glob("supervisor.db*"))

    def strangers(self) -> list[str]:
        """See `Site`."""
        owner, daemon = self.uid, int(self.box.run("id -u rocm-supervisor", check=True).output)
        expected = {"rocm-runs.slice": owner, UNIT: daemon}
        found = []
        for process, pid in self._processes():
            with suppress(psutil.Error, OSError):
                group = Path(f"/proc/{process.pid}/cgroup").read_text()
                uids = set(process.uids())
                # systemd's own, between fork and exec, which has yet to become the unit's user, is called (NAME).
                starting = process.cmdline()[:1] != [] and process.cmdline()[0].startswith("(")
                for part, uid in expected.items():
                    if f"/{part}" in group and uids - {uid} and not starting:
                        found.append(f"process {pid} of {part} runs as {sorted(uids)}: {process.cmdline()}")
        return found

    def _processes(self) -> Iterator[tuple[psutil.Process, int]]:
        """Yield each process of the box with its pid in there."""
        mine = Path(f"/proc/{self.box.init_pid}/ns/pid").stat().st_ino
        for process in psutil.process_iter():
            with suppress(OSError, psutil.Error):
                if Path(f"/proc/{process.pid}/ns/pid").stat().st_ino == mine:
                    status = Path(f"/proc/{process.pid}/status").read_text(errors="replace")
                    yield process, int(status.partition("NSpid:")[2].splitlines()[0].split()[-1])


@contextmanager
def foreground(keep: Path | None) -> Iterator[Foreground]:
    """Yield an installation in a new folder, and end everything in it."""
    folder = Path(tempfile.mkdtemp(prefix="attack-", dir=keep))
    site = Foreground(folder)
    try:
        yield site
    finally:
        site.leave()
        if keep is None:
            os.system(f"rm -rf {folder}")  # shutil does not go as deep as an attack may have gone


@contextmanager
def installed() -> Iterator[Installed]:
    """Boot a box with the installed units."""
    with night() as before:
        yield Installed(before.box)


def wait_until_answered(site: Foreground | Installed, limit_s: float) -> float:
    """Return how long it took until the daemon answered, at most `limit_s`."""
    began = time.perf_counter()
    while site.status() is None and time.perf_counter() < began + limit_s:
        time.sleep(0.05)
    return time.perf_counter() - began
