"""A real PostgreSQL server of its own on a unix socket, run as an ordinary user: started, killed, started again."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
import time
from pathlib import Path

from sqlalchemy import Engine, text

from supervisor.fleet.database import connect

USER = "postgres"
SHIPPER, READER = "shipper", "reader"
"""Roles that tests grant what each needs."""
START_LIMIT_S = 60.0
FAST = "-c fsync=off -c shared_buffers=16MB -c max_connections=20"


def programs() -> Path | None:
    """Return the folder of the newest server installed, None where there is none."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/postgres"), key=lambda path: int(path.parts[-3]))
    return found[-1].parent if found else None


def missing() -> str | None:
    """Return why no server can be started here, None where one can."""
    if programs() is None:
        return "no PostgreSQL server is installed (Debian: postgresql)"
    if os.geteuid() == 0 and not _has_user():
        return f"root cannot run PostgreSQL, and there is no user {USER}"
    return None


class PostgresServer:
    """One server in a folder of its own; `url(role)` connects to it."""

    def __init__(self, folder: Path) -> None:
        found = programs()
        assert found is not None, missing()
        self._programs = found
        self._data = folder / "data"
        self._log = folder / "log"
        self.socket_folder = folder
        # Paths of tests are longer than a unix socket's may be, and the tests' folders are root's alone.
        folder.mkdir(mode=0o755, exist_ok=True)
        if os.geteuid() == 0:
            shutil.chown(folder, USER)
        self._run(
            "initdb",
            "--pgdata",
            str(self._data),
            "--auth=trust",
            "--username=owner",
            "--no-sync",
            "--locale=C",
            "-E",
            "UTF8",
        )

    def url(self, role: str = "owner", database: str = "postgres") -> str:
        """Return the URL of a database for a role."""
        return f"postgresql://{role}@/{database}?host={self.socket_folder}"

    def start(self) -> None:
        """Start it and wait until it answers."""
        options = f"-k {self.socket_folder} -c listen_addresses='' {FAST}"
        self._run("pg_ctl", "start", "-w", "-t", "60", "-D", str(self._data), "-l", str(self._log), "-o", options)

    def stop(self) -> None:
        """Stop it; whoever is connected is sent away."""
        if self.pid is not None:
            self._run("pg_ctl", "stop", "-w", "-m", "fast", "-D", str(self._data))

    def kill(self) -> None:
        """End it at once by SIGQUIT, as its manual says of an immediate shutdown, and wait until it is gone."""
        pid = self.pid
        assert pid is not None, "it does not run"
        os.kill(pid, signal.SIGQUIT)
        deadline = time.perf_counter() + START_LIMIT_S
        while Path(f"/proc/{pid}").exists() and time.perf_counter() < deadline:
            time.sleep(0.01)

    @property
    def pid(self) -> int | None:
        """The process, None where it does not run."""
        try:
            pid = int((self._data / "postmaster.pid").read_text().split()[0])
        except (OSError, ValueError, IndexError):
            return None
        return pid if Path(f"/proc/{pid}").exists() else None

    def _run(self, program: str, *arguments: str) -> None:
        command = [str(self._programs / program), *arguments]
        if os.geteuid() == 0:
            command = ["setpriv", f"--reuid={USER}", f"--regid={USER}", "--init-groups", *command]
        done = subprocess.run(command, capture_output=True, text=True, check=False, cwd="/")
        assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"


class Address:
    """Where a database is."""

    password_file: str | None = None

    def __init__(self, database_url: str | None) -> None:
        self.database_url = database_url


class FleetDatabase:
    """The fleet's database of one test; `connect` and `url` take a role."""

    def __init__(self, server: PostgresServer, name: str) -> None:
        self.server = server
        self.name = name

    def url(self, role: str = "owner") -> str:
        """Return its URL for a role."""
        return self.server.url(role, self.name)

    def connect(self, role: str = "owner") -> Engine:
        """Return an engine."""
        return connect(Address(self.url(role)))

    def count(self, table: str) -> int:
        """Return the number of rows of a table."""
        with self.connect().connect() as connection:
            return int(connection.execute(text(f"SELECT count(*) FROM rocm_supervisor.{table}")).scalar_one())


def _has_user() -> bool:
    try:
        pwd.getpwnam(USER)
    except KeyError:
        return False
    return True
