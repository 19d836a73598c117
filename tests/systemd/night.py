"""The real daemon as `supervisorctl setup` installed it, under its real unit in a box; it stands in for nothing."""

from __future__ import annotations

import json
import shlex
import signal
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from supervisor.control.client import Client, ControlError
from supervisor.runner.code_copy import FOLDER
from tests.e2e.house import TRAINING, House
from tests.rigs.installed_box import OWNER, PYTHON, STATE, InstalledBox, elsewhere, open_the_way
from tests.rigs.systemd_box import Completed, SystemdBox

UNIT = "rocm-supervisor.service"
RUN = "rocm-run@one.service"
HOME = f"/home/{OWNER}"
CONFIG = "/etc/rocm-supervisor/config.toml"
CTL = f"{PYTHON.parent}/rocm-supervisorctl"
QUERY = """\
import json, sqlite3, sys
path, sql, values = json.load(sys.stdin)
print(json.dumps(sqlite3.connect(path, uri=True, timeout=10).execute(sql, values).fetchall()))
"""


class Night(House):
    """What the tests of a `House` can ask, asked of the daemon in a box; `folder` is the owner's home."""

    def __init__(self, box: SystemdBox, user: str | None = None) -> None:
        """`user`: not the machine's daemon, but the one of this person's own systemd."""
        self.box = box
        self.user = user
        self.root = Path(f"/proc/{box.init_pid}/root")
        super().__init__(self.inside(HOME))
        self.place = f"{HOME}/.local/state/rocm-supervisor" if user else STATE
        self.state = self.inside(self.place)
        self.path = f"{HOME}/.config/rocm-supervisor/config.toml" if user else CONFIG
        self.uid = int(box.run(f"id -u {OWNER}", check=True).output)
        self.runtime = f"/run/user/{self.uid}"
        self.client = Client(self.inside(f"{self.runtime if user else '/run'}/rocm-supervisor/control.sock"))

    def write(self, text: str, head: str = "") -> None:
        """Write the configuration; the kernel log is off unless `text` speaks of it."""
        kernel = "" if "[kernel_log]" in text else "[kernel_log]\nenabled = false\n"
        state = f'state_dir = "{self.place}"'
        self.box.run(f"cat >{self.path}", stdin=f"[supervisor]\n{state}\n{head}\n{kernel}\n{text}", check=True)

    def by_hand(self, name: str, *options: str, table: str = "", **rules: str) -> str:
        """Return a job of training_by_hand.py that saves into the owner's home."""
        words = [str(PYTHON), str(TRAINING), "--folder", f"{HOME}/{name}", *options]
        return self.job_of(name, words, table, **rules)

    def begin(self) -> None:
        """Start the daemon by its unit, which comes back when it is READY."""
        self.systemctl(f"start {UNIT}")

    def systemctl(self, words: str, *, timeout_s: float = 60) -> str:
        """Run systemctl, which must succeed; return what it printed."""
        if self.user is None:
            return self.box.run(f"systemctl {words}", timeout_s=timeout_s, check=True).output.strip()
        place = {"XDG_RUNTIME_DIR": self.runtime}
        command = f"systemctl --user {words}"
        return self.box.run(command, user=self.user, environment=place, timeout_s=timeout_s, check=True).output.strip()

    def shown(self, name: str, unit: str = UNIT) -> str:
        """Return a property of a unit."""
        return self.systemctl(f"show --value --property={name} {unit}")

    def asked(self, words: str, user: str | None = None) -> Completed:
        """Run supervisorctl inside as root or `user`."""
        return self.box.run(f"{CTL} {words}", user=user, environment={"HOME": f"/home/{user}"} if user else None)

    def status(self) -> dict[str, Any] | None:
        """Return the status, or None where the daemon does not answer."""
        try:
            return self.client.get("/v1/status", watched=0)
        except ControlError:
            return None

    def job(self, name: str) -> dict[str, Any]:
        """Return one job's status, waiting over a restart of the daemon."""
        status = self.status()
        if status is None:
            self.until(lambda: self.status() is not None, 20, "the daemon to answer")
            return super().job(name)
        return next(job for job in status["jobs"] if job["name"] == name)

    def another_daemon(self, pid: str, limit_s: float = 20) -> None:
        """Wait until the daemon is another process than `pid`."""
        self.until(lambda: self.shown("MainPID") not in ("0", pid), limit_s, f"a daemon in the place of {pid}")

    def made_beyond(self, name: str, step: int, limit_s: float = 20) -> None:
        """Wait until the training itself wrote down a step beyond this one."""
        self.until(lambda: (self.steps_made(name) or [0])[-1] > step, limit_s, f"{name} to go on beyond {step}")

    def query(self, sql: str, *values: object) -> list[tuple[Any, ...]]:
        """Ask the database as the daemon's user: SQLite follows the link that leads into the box."""
        asked = json.dumps([f"file:{self.place}/supervisor.db?mode=ro", sql, values])
        reader = self.user or "rocm-supervisor"
        done = self.box.run(f"{PYTHON} -c {shlex.quote(QUERY)}", user=reader, stdin=asked, check=True)
        return [tuple(row) for row in json.loads(done.output)]

    def inside(self, path: str) -> Path:
        """Return a path of the box as it is reached from outside."""
        return self.root / path.removeprefix("/")

    def read_output(self) -> str:
        """Return the journal's end and the newest output of the trainings."""
        journal = self.box.run("journalctl --no-pager --lines=60 --output=short-precise").output
        text = [journal]
        for output in sorted(self.state.glob("jobs/*/[0-9]*/run/output.log")):
            text.append(f"--- {output}\n{output.read_text(errors='replace')[-1500:]}")
        return "\n".join(text)

    def clear(self) -> None:
        """End all, and forget what they left, but for the code that the next launch would copy and compile again."""
        self.box.run(
            f"systemctl kill --signal={int(signal.SIGKILL)} 'rocm-run@*.service' {UNIT}; systemctl stop {UNIT}"
        )
        self.box.run("systemctl stop 'rocm-run@*.service'; systemctl reset-failed")
        left = f"$(find {STATE} -mindepth 1 -maxdepth 1 ! -name {FOLDER}) {HOME}/* {HOME}/.config {HOME}/.local"
        self.box.run(f"rm -rf {left} {HOME}/.cache; systemd-tmpfiles --create rocm-supervisor.conf", check=True)


@contextmanager
def night(kept: Path | None = None) -> Iterator[Night]:
    """Boot a box and install for ann; with `kept`, her home and the daemon's state lie there and outlive the box."""
    keep: Mapping[Path, str] = {}
    if kept is not None:
        keep = {kept / "home": HOME, kept / "state": STATE}
        for folder in keep:
            folder.mkdir(exist_ok=True)
    with SystemdBox(keep=keep, show=elsewhere()) as box:
        open_the_way(box)
        box.run(f"useradd --create-home {OWNER}; useradd --create-home bob", check=True)
        box.run(f"chown {OWNER}: {HOME}; chmod 0750 {HOME}", check=True)
        done = InstalledBox(box=box).setup(f"--owner {OWNER}")
        assert done.ok, done.output
        box.run("systemctl daemon-reload", check=True)
        yield Night(box)
