"""What settings must be beside well typed: keys judged by one another and by the machine they are read on."""

from __future__ import annotations

import re
import stat
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

from supervisor.config.problems import Level, Problem
from supervisor.config.read import join, show
from supervisor.config.settings import AlertSettings, JobSettings, Settings

OURS = "ROCM_SUPERVISOR_"
PLACEHOLDER = "{checkpoint}"
VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def cross_check(settings: Settings, file: str) -> Iterator[Problem]:
    """Yield what does not fit together in `settings`."""
    if settings.supervisor.database is not None and "://" not in settings.supervisor.database:
        yield Problem(
            file=file,
            key="supervisor.database",
            problem="is no database URL",
            allowed='write it as SQLAlchemy does: "sqlite:////var/lib/rocm-supervisor/supervisor.db"',
        )
    for name, job in settings.jobs.items():
        key = join("jobs", name)
        yield from _environment(job, key, file)
        yield from _commands(job, key, file)
        yield from _places(job, key, file)
        yield from _snapshots(job, key, file)
        yield from _triage(job, key, file, agent=settings.supervisor.agent)
        if job.conv2d not in ("auto", "off") and not settings.supervisor.agent:
            yield Problem(
                file=file,
                key=f"{key}.conv2d",
                problem="needs the agent, which is switched off",
                allowed='set supervisor.agent = true, or conv2d = "off"',
                value=show(job.conv2d),
            )
    for name, alert in settings.alerts.items():
        key = join("alerts", name)
        yield from _address(alert, key, file)
        yield from _secrets(alert, key, file)


def _environment(job: JobSettings, key: str, file: str) -> Iterator[Problem]:
    for name in (*job.env, *job.profiles.cpu.env):
        if VARIABLE.fullmatch(name) is None:
            problem, allowed = "is no name of a variable", "allowed: letters, digits and _, no digit first"
        elif name.startswith(OURS):
            problem, allowed = "is set by the daemon itself", f"choose a name that does not begin with {OURS}"
        else:
            continue
        table = f"{key}.env" if name in job.env else f"{key}.profiles.cpu.env"
        yield Problem(file=file, key=join(table, name), problem=problem, allowed=allowed)


def _triage(job: JobSettings, key: str, file: str, *, agent: bool) -> Iterator[Problem]:
    """A replay may write over what its training saved, and only the agent can look into it."""
    needs = [] if job.checkpoints.keep else [("kept generations", f"set {key}.checkpoints.keep = true")]
    needs += [] if agent else [("the agent, which is switched off", "set supervisor.agent = true")]
    for what, remedy in needs if job.triage == "by-itself" else ():
        allowed = f'{remedy}, or triage = "by-hand"'
        yield Problem(file=file, key=f"{key}.triage", problem=f"needs {what}", allowed=allowed, value=show(job.triage))


def _commands(job: JobSettings, key: str, file: str) -> Iterator[Problem]:
    resume = job.resume.command
    if resume is not None and not any(PLACEHOLDER in word for word in resume):
        yield Problem(
            file=file,
            key=f"{key}.resume.command",
            problem="does not say where the checkpoint goes",
            allowed=f'one of its words must hold {PLACEHOLDER}, as in "model={PLACEHOLDER}"',
            value=show(resume),
        )
    elsewhere = job.profiles.cpu.resume_command
    if elsewhere is not None and not any(PLACEHOLDER in word for word in elsewhere):
        yield Problem(
            file=file,
            key=f"{key}.profiles.cpu.resume_command",
            problem="does not say where the checkpoint goes",
            allowed=f'one of its words must hold {PLACEHOLDER}, as in "model={PLACEHOLDER}"',
            value=show(elsewhere),
        )
    if any(PLACEHOLDER in word for word in job.command):
        yield Problem(
            file=file,
            key=f"{key}.command",
            problem=f"holds {PLACEHOLDER}, but it starts from the beginning",
            allowed=f"write what resumes into {key}.resume.command",
            value=show(job.command),
        )


def _places(job: JobSettings, key: str, file: str) -> Iterator[Problem]:
    """Warn of what is not there now; it may be mounted by the time the job starts."""
    if job.cwd is not None and not Path(job.cwd).is_dir():
        yield _absent(file, f"{key}.cwd", "is no directory here", job.cwd)
    for where, command in (("command", job.command), ("resume.command", job.resume.command)):
        if command and command[0].startswith("/") and not Path(command[0]).is_file():
            yield _absent(file, f"{key}.{where}[0]", "is no file here", command[0])


def _snapshots(job: JobSettings, key: str, file: str) -> Iterator[Problem]:
    every = job.snapshot_every_s
    if every == "auto" or (not isinstance(every, str) and every >= 0):
        return
    problem, allowed = "is no interval", 'allowed: seconds (0 or false: none) or "auto"'
    yield Problem(file=file, key=f"{key}.snapshot_every_s", problem=problem, allowed=allowed, value=show(every))


def _absent(file: str, key: str, problem: str, value: str) -> Problem:
    allowed = "it must be there when the job starts"
    return Problem(file=file, key=key, problem=problem, allowed=allowed, value=show(value), level=Level.WARNING)


def _address(alert: AlertSettings, key: str, file: str) -> Iterator[Problem]:
    given = [name for name in ("url", "url_file", "url_env") if getattr(alert, name) is not None]
    if len(given) != 1:
        problem = f"has {' and '.join(given)}" if given else "has no address"
        yield Problem(
            file=file, key=f"{key}.url", problem=problem, allowed="needed: exactly one of url, url_file, url_env"
        )
    if alert.url is not None and not _is_web_address(alert.url):
        yield Problem(
            file=file,
            key=f"{key}.url",
            problem="is no address of a webhook",
            allowed='allowed: "https://HOST/..." or "http://HOST/..." (not shown: it may hold a token)',
        )
    if alert.url is not None and _mode(Path(file)) & stat.S_IROTH:
        yield Problem(
            file=file,
            key=f"{key}.url",
            problem="can be read by everybody on this machine, and may hold a token",
            allowed=f"use url_file, or chmod o-r {file}",
            level=Level.WARNING,
        )


def _is_web_address(url: str) -> bool:
    try:
        parts = urlsplit(url)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0 and url.isprintable()
    except ValueError:
        return False


def _secrets(alert: AlertSettings, key: str, file: str) -> Iterator[Problem]:
    if alert.secret_file is not None and alert.secret_env is not None:
        yield Problem(
            file=file, key=f"{key}.secret_file", problem="has secret_env beside it", allowed="leave out one of the two"
        )
    for name in ("url_env", "secret_env"):
        value = getattr(alert, name)
        if value is not None and VARIABLE.fullmatch(value) is None:
            yield Problem(
                file=file,
                key=f"{key}.{name}",
                problem="is no name of a variable",
                allowed="write the variable's name, not its value",
            )
    for name in ("url_file", "secret_file"):
        value = getattr(alert, name)
        if value is not None:
            yield from _secret_file(Path(value), f"{key}.{name}", file)


def _secret_file(path: Path, key: str, file: str) -> Iterator[Problem]:
    shown = show(str(path))
    try:
        mode = path.stat().st_mode
    except PermissionError:
        return  # only the daemon's user may see it, as it should be
    except OSError as error:
        allowed = f"make it: install -m 600 /dev/null {path}"
        yield Problem(file=file, key=key, problem=f"{error.strerror}", allowed=allowed, value=shown)
        return
    if not stat.S_ISREG(mode):
        yield Problem(file=file, key=key, problem="is no plain file", allowed="needed: a file", value=shown)
    elif mode & stat.S_IRWXO:
        problem = f"is open to everybody (mode {stat.S_IMODE(mode):04o})"
        yield Problem(file=file, key=key, problem=problem, allowed=f"chmod 600 {path}", value=shown)


def _mode(path: Path) -> int:
    try:
        return path.stat().st_mode
    except OSError:
        return 0
