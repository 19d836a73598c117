"""The installations that are attacked: a daemon in the foreground, and the units in a systemd with three users."""

from __future__ import annotations

import json
import os
import shlex
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Protocol

import psutil
from attack_plan import Action, share, to_script
from observer import HOSTILE, Lines

from tests.e2e.house import House
from tests.rigs.installed_box import PYTHON
from tests.rigs.systemd_box import SystemdBox
from tests.systemd.night import HOME, UNIT, Night, night

SOCKET = "/run/rocm-supervisor/control.sock"
METRICS = "/run/rocm-supervisor/metrics.sock"
PAGE, LOGIN = "/run/rocm-supervisor-web/web.sock", "/run/rocm-supervisor-web/login.sock"
LOG = "/run/attack.log"
ANSWER_QUERIES = """\
import json, sqlite3, sys
from contextlib import closing
for line in sys.stdin:
    path, sql, values = json.loads(line)
    with closing(sqlite3.connect(path, uri=True, timeout=60)) as database:
        print(json.dumps(database.execute(sql, values).fetchall()), flush=True)
"""
INTRUSIONS_PER_S = 10.0
"""The pace of each user who owns no training; they begin anew until the attack is over."""
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


def names_of_hostile(count: int) -> tuple[str, ...]:
    """Return the names of so many hostile trainings."""
    return tuple(HOSTILE if number == 0 else f"{HOSTILE}{number + 1}" for number in range(count))


def settings(
    name: str, where: str, outside: str, control: str, per_s: float, *, doors: Sequence[str], tame: bool
) -> dict[str, object]:
    """Return what a hostile training or an intruder of this name is told, by paths as it sees them."""
    return {
        "script": f"{where}/{name}.script", "progress": f"{where}/{name}.progress", "said": f"{where}/{name}.said",
        "pace_s": 1 / per_s, "saves": f"{where}/{name}-saves", "canary": f"{outside}/canary",
        "canary_folder": f"{outside}/folder", "secret": f"{outside}/secret", "socket": control,
        "doors": list(doors), "daemon_pid": 0, "tame": tame,
    }  # fmt: skip


class Foreground(House):
    """A daemon in the foreground; trainings, shims and daemon are one user."""

    secret = SECRET
    one_user = True
    python = sys.executable

    def __init__(self, folder: Path, trainings: int) -> None:
        """`trainings`: how many hostile ones there are."""
        super().__init__(folder)
        self.hostile = names_of_hostile(trainings)
        self.metrics = (str(self.state / "metrics.sock"),)

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
        where, outside, control = str(self.folder), str(self.outside), str(self.state / "control.sock")
        for number, name in enumerate(self.hostile):
            (self.folder / f"{name}.script").write_text(to_script(share(actions, number, len(self.hostile))))
            reported = settings(name, where, outside, control, per_s / len(self.hostile), doors=self.metrics, tame=True)
            (self.folder / f"{name}.json").write_text(json.dumps(reported))

    def begin(self) -> None:
        """Start the daemon."""
        self.start()
        self.tell_pid()

    def tell_pid(self) -> None:
        """Tell the hostile trainings which process the daemon is; they learn it with their next attempt."""
        assert self.daemon is not None
        for name in self.hostile:
            path = self.folder / f"{name}.json"
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

    def doors(self) -> list[tuple[str, Path, str]]:
        """See `Site`: the page is a program of its own, which nobody starts here."""
        return [("metrics", self.state / "metrics.sock", "/metrics")]

    def door_process(self, name: str) -> int | None:
        """See `Site`: the daemon answers them all."""
        process = self.daemon_process()
        return None if process is None else process.pid

    def strangers(self) -> list[str]:
        """See `Site`: all are one user here."""
        return []

    def intrusions(self) -> dict[str, int]:
        """See `Site`: there is nobody else here."""
        return {}


class Installed(Night):
    """The units in a booted systemd: trainings of ann, a daemon of its own user, carol in its group, bob in none."""

    secret = SECRET
    one_user = False
    python = str(PYTHON)
    place_of_trainings = f"{HOME}/attack"
    outside_inside = "/srv/outside"
    intruders = ("carol", "bob")

    def __init__(self, box: SystemdBox, trainings: int) -> None:
        """`trainings`: how many hostile ones there are."""
        super().__init__(box)
        self.hostile = names_of_hostile(trainings)
        self.metrics = (METRICS, f"127.0.0.1:{_free_port()}")
        self._daemon_uid = int(box.run("id -u rocm-supervisor", check=True).output)
        self._process: psutil.Process | None = None
        self._asked: subprocess.Popen[bytes]
        self._stories = [Lines(self.inside(f"/home/{user}/attack/{user}.said")) for user in self.intruders]

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
        doors = (*self.metrics, PAGE, LOGIN)
        shares = {name: share(actions, number, len(self.hostile)) for number, name in enumerate(self.hostile)}
        scripts_by_user: dict[str, dict[str, Sequence[Action]]] = {
            "ann": dict(shares),
            **{user: {user: actions} for user in self.intruders},
        }
        for user, scripts in scripts_by_user.items():
            where = f"/home/{user}/attack"
            for name, script in scripts.items():
                self.box.write(f"{where}/{name}.script", to_script(script))
                pace = per_s / len(self.hostile) if user == "ann" else INTRUSIONS_PER_S
                reported = settings(name, where, self.outside_inside, SOCKET, pace, doors=doors, tame=False)
                self.box.write(f"{where}/{name}.json", json.dumps(reported))
            self.box.run(f"chown -R {user}: {where}", check=True)

    def begin(self) -> None:
        """Start the daemon, and the intruders."""
        log = f"journalctl --unit={UNIT} --output=cat --lines=all --follow >{LOG}"
        self.box.run(f"systemd-run --quiet --unit=attack-log bash -c {shlex.quote(log)}", check=True)
        self.box.run("systemctl start rocm-supervisor-web.socket", check=True)
        self._asked = self.box.begin([self.python, "-c", ANSWER_QUERIES], user="rocm-supervisor")
        super().begin()
        self._process = self._main_process()
        for user in self.intruders:
            words = [self.python, str(HERE / "intruder.py"), f"/home/{user}/attack/{user}.json", self.place]
            unit = f"systemd-run --quiet --unit=intruder-{user} --uid={user} --slice=intruders"
            self.box.run(f"{unit} --setenv=PYTHONDONTWRITEBYTECODE=1 {shlex.join(words)}", check=True)

    def query(self, sql: str, *values: object) -> list[tuple[Any, ...]]:
        """Ask the database as the daemon's user, by a program that stays: it is asked each second."""
        assert self._asked.stdin is not None, "opened with pipes"
        assert self._asked.stdout is not None, "opened with pipes"
        asked = json.dumps([f"file:{self.place}/supervisor.db?mode=ro", sql, values])
        self._asked.stdin.write(asked.encode() + b"\n")
        self._asked.stdin.flush()
        return [tuple(row) for row in json.loads(self._asked.stdout.readline())]

    def replace_daemon(self) -> None:
        """Kill the daemon; systemd starts another."""
        before = self.shown("MainPID")
        self.systemctl(f"kill --signal=KILL {UNIT}")
        self.another_daemon(before, 30)
        self._process = self._main_process()

    def daemon_process(self) -> psutil.Process | None:
        """See `Site`; one that systemd restarted by itself is no daemon that was meant."""
        return self._process if self._process is not None and self._process.is_running() else None

    def _main_process(self) -> psutil.Process | None:
        main_pid = int(self.shown("MainPID"))
        return next((process for process, pid in self._processes() if pid == main_pid), None)

    def log_size_bytes(self) -> int:
        """See `Site`."""
        return self.inside(LOG).stat().st_size

    def log_text(self) -> str:
        """See `Site`."""
        return self.box.run(f"journalctl -u {UNIT} -o cat -n 200", check=True).output

    def database_size_bytes(self) -> int:
        """See `Site`."""
        return sum(path.stat().st_size for path in self.state.glob("supervisor.db*"))

    def strangers(self) -> list[str]:
        """See `Site`."""
        expected = {"rocm-runs.slice": self.uid, UNIT: self._daemon_uid}
        found = []
        for process, pid in self._processes():
            with suppress(psutil.Error, OSError):
                group = Path(f"/proc/{process.pid}/cgroup").read_text()
                command, uids = started_as(process)
                for part, uid in expected.items():
                    if f"/{part}" in group and uids - {uid}:
                        found.append(f"process {pid} of {part} runs as {sorted(uids)}: {command}")
        return found

    def doors(self) -> list[tuple[str, Path, str]]:
        """See `Site`."""
        return [("metrics", self.inside(METRICS), "/metrics"), ("page", self.inside(PAGE), "/")]

    def door_process(self, name: str) -> int | None:
        """See `Site`."""
        unit = f"/{UNIT if name == 'metrics' else 'rocm-supervisor-web.service'}\n"
        for process, _ in self._processes():
            with suppress(psutil.Error, OSError):
                if unit in Path(f"/proc/{process.pid}/cgroup").read_text():
                    return process.pid
        return None

    def intrusions(self) -> dict[str, int]:
        """See `Site`."""
        for story in self._stories:
            story.read()
        return {user: story.count for user, story in zip(self.intruders, self._stories, strict=True)}

    def leave(self) -> None:
        """End the users without a training, the daemon and all trainings."""
        others = " ".join(f"intruder-{user}" for user in self.intruders)
        killed = f"systemctl kill --signal=KILL {UNIT} 'rocm-run@*.service'"
        self.box.run(f"{killed}; systemctl stop rocm-supervisor.socket {UNIT} {others}")

    def _processes(self) -> Iterator[tuple[psutil.Process, int]]:
        """Yield each process of the box with its pid in there."""
        mine = Path(f"/proc/{self.box.init_pid}/ns/pid").stat().st_ino
        for process in psutil.process_iter():
            with suppress(OSError, psutil.Error):
                if Path(f"/proc/{process.pid}/ns/pid").stat().st_ino == mine:
                    status = Path(f"/proc/{process.pid}/status").read_text(errors="replace")
                    yield process, int(status.partition("NSpid:")[2].splitlines()[0].split()[-1])


class AnyProcess(Protocol):
    """A process as it is looked at."""

    def cmdline(self) -> list[str]:
        """Return its command."""

    def uids(self) -> Sequence[int]:
        """Return its users, the real one first."""


def started_as(process: AnyProcess) -> tuple[list[str], set[int]]:
    """Return a process's command and its users; nobody for systemd's own, which has yet to become the unit's user.

    Between fork and exec it is called as the manager is, and then (NAME). Read the other way round, the users were
    those before the exec and the command that after it.
    """
    command = process.cmdline()
    forked = command[:1] and (command[0].startswith("(") or (command[0].endswith("/systemd") and "--system" in command))
    return command, set() if forked else set(process.uids())


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        return int(listening.getsockname()[1])


@contextmanager
def foreground(keep: Path | None, trainings: int = 1) -> Iterator[Foreground]:
    """Yield an installation in a new folder, and end everything in it."""
    folder = Path(tempfile.mkdtemp(prefix="attack-", dir=keep))
    site = Foreground(folder, trainings)
    try:
        yield site
    finally:
        site.leave()
        if keep is None:
            os.system(f"rm -rf {folder}")  # shutil does not go as deep as an attack may have gone


@contextmanager
def installed(trainings: int = 1) -> Iterator[Installed]:
    """Boot a box with the installed units."""
    with night() as before:
        yield Installed(before.box, trainings)


def wait_until_answered(site: Foreground | Installed, limit_s: float) -> float:
    """Return how long it took until the daemon answered, at most `limit_s`."""
    began = time.perf_counter()
    while site.status() is None and time.perf_counter() < began + limit_s:
        time.sleep(0.05)
    return time.perf_counter() - began
