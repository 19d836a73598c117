"""Checks of settings against each other and against the machine, in addition to their types."""

from __future__ import annotations

import os
import pwd
import re
import stat
from collections.abc import Callable, Iterator, Sequence
from glob import has_magic
from pathlib import Path
from urllib.parse import urlsplit

from supervisor.alerts.settings import AlertSettings, explain_zone
from supervisor.checkpoint_patterns import advise, ends_with_name, place_of, with_home
from supervisor.children.path_looks import Found, PathLooks, SilentPathError
from supervisor.config.environments import LAUNCHERS, PYTHON, split_command
from supervisor.config.problems import Level, Problem
from supervisor.config.read import join, show
from supervisor.config.settings import NUMBER, PLACEHOLDER, EnvironmentSettings, JobSettings, Settings
from supervisor.core.remedies.presets import PRESETS, env_of

OURS = "ROCM_SUPERVISOR_"
DAEMON_USER = "rocm-supervisor"
"""Name of the user, and of its group, that the system's daemon runs as (systemd/rocm-supervisor.sysusers.conf)."""
RESUMED_BY_THE_AGENT = frozenset({"yolo"})
"""Programs of which it is known that the agent resumes them without a command of their own."""
VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
PROGRAM_FOLDERS = ("/usr/local/bin", "/usr/bin")
NO_PODMAN = f"needs podman, which is not in {' or '.join(PROGRAM_FOLDERS)}"


def cross_check(settings: Settings, file: str, looks: PathLooks) -> Iterator[Problem]:
    """Yield what does not fit together in `settings`; `looks` answers for the files that they name."""
    if settings.supervisor.database is not None and "://" not in settings.supervisor.database:
        yield Problem(
            file=file,
            key="supervisor.database",
            problem="is not a database URL",
            allowed='write it as SQLAlchemy does: "sqlite:////var/lib/rocm-supervisor/supervisor.db"',
        )
    for name, job in settings.jobs.items():
        yield from _check_job(job, join("jobs", name), file, looks, agent=settings.supervisor.agent)
    for name, alert in settings.alerts.items():
        key = join("alerts", name)
        yield from _check_texts(alert, key, file)
        yield from _check_url(alert, key, file)
        yield from _check_places(alert, key, file, looks)
        yield from _check_zone(name, alert, key, file)


def _check_job(job: JobSettings, key: str, file: str, looks: PathLooks, *, agent: bool) -> Iterator[Problem]:
    yield from _check_environment(job, key, file)
    yield from _check_preset(job, key, file)
    yield from _check_environments(job, key, file)
    yield from _check_commands(job, key, file)
    yield from _check_resume(job, key, file)
    yield from _check_homes(job, key, file)
    yield from _check_patterns(job, key, file, looks)
    yield from _check_local_paths(job, key, file, looks)
    yield from _check_snapshots(job, key, file)
    yield from _check_triage(job, key, file, agent=agent)
    if agent:
        yield from _check_agent_loads(job, key, file)
    else:
        yield from _check_without_agent(job, key, file)


def _check_agent_loads(job: JobSettings, key: str, file: str) -> Iterator[Problem]:
    """Warn about a command whose words keep the agent out: nothing else says why such a training has none."""
    cpu = job.profiles.cpu
    commands = {"command": job.command, "resume.command": job.resume.command}
    commands |= {"profiles.cpu.command": cpu.command, "profiles.cpu.resume_command": cpu.resume_command}
    for where, words in commands.items():
        cause = None if words is None else _find_agent_loss(words)
        if words is not None and cause is not None:
            yield Problem(
                file=file,
                key=f"{key}.{where}",
                problem=f"runs without the agent, which is found by PYTHONPATH and loaded by site: {cause}",
                allowed=f"set variables in {key}.env, where PYTHONPATH is added to the agent's, and give Python "
                "none of -I, -E and -S; or supervisor.agent = false",
                value=show(words),
                level=Level.WARNING,
            )


def _find_agent_loss(command: Sequence[str]) -> str | None:
    """Return what in a command, of `env` or of Python itself, keeps the agent out; None where nothing is seen."""
    words = list(command)
    if words and Path(words[0]).name == "env":
        words.pop(0)
        while words and (words[0].startswith("-") or "=" in words[0]):
            word = words.pop(0)
            if word in ("-u", "--unset", "-C", "--chdir") and words:
                word = f"{word} {words.pop(0)}"
            if word in ("-", "-i", "--ignore-environment") or re.match(r"(?:-u *|--unset[= ])?PYTHONPATH(?:=|$)", word):
                return f"env {word}"
    return _find_isolation(words[1:]) if words and PYTHON.fullmatch(Path(words[0]).name) else None


def _find_isolation(options: Sequence[str]) -> str | None:
    """Return the option with which Python ignores PYTHONPATH or site; see "Command line" of Python's manual."""
    rest = iter(options)
    for word in rest:
        if not re.match(r"-[^-]", word):
            return None  # the script
        for index, letter in enumerate(word[1:], start=1):
            if letter in "IES":
                return f"python -{letter}"
            if letter in "cm":
                return None
            if letter in "WX":  # the rest of the word is its value, or the next word
                if index == len(word) - 1:
                    next(rest, None)
                break
    return None


def _check_without_agent(job: JobSettings, key: str, file: str) -> Iterator[Problem]:
    """Yield the settings of a job that only the agent can carry out."""
    problem = "needs the agent, which is switched off"
    if job.standby:
        allowed = "set supervisor.agent = true, or standby = false"
        yield Problem(file=file, key=f"{key}.standby", problem=problem, allowed=allowed)
    if job.conv2d not in ("auto", "off"):
        allowed, value = 'set supervisor.agent = true, or conv2d = "off"', show(job.conv2d)
        yield Problem(file=file, key=f"{key}.conv2d", problem=problem, allowed=allowed, value=value)


def _check_environment(job: JobSettings, key: str, file: str) -> Iterator[Problem]:
    tables = {"env": job.env, "profiles.cpu.env": job.profiles.cpu.env}
    tables |= {join("environments", name) + ".env": item.env for name, item in job.environments.items()}
    for table, name in ((table, name) for table, variables in tables.items() for name in variables):
        if VARIABLE.fullmatch(name) is None:
            problem, allowed = (
                "is not the name of an environment variable",
                "allowed: letters, digits and _, no digit first",
            )
        elif name.startswith(OURS):
            problem, allowed = "is set by the daemon itself", f"choose a name that does not begin with {OURS}"
        else:
            continue
        yield Problem(file=file, key=join(f"{key}.{table}", name), problem=problem, allowed=allowed)


def _check_preset(job: JobSettings, key: str, file: str) -> Iterator[Problem]:
    if job.preset is not None and env_of(job.preset) is None:
        names = ", ".join(f'"{preset.name}"' for preset in PRESETS)
        yield Problem(file=file, key=f"{key}.preset", problem="is no preset", allowed=f"one of: {names}")


def _check_environments(job: JobSettings, key: str, file: str) -> Iterator[Problem]:
    """Require of each environment that it names one interpreter, and of the commands that theirs can be exchanged."""
    for name, environment in job.environments.items():
        yield from _check_interpreter(environment, join(f"{key}.environments", name), file)
    if not job.environments:
        return
    for where, words in {"command": job.command, "resume.command": job.resume.command}.items():
        if words is not None and split_command(words) is None:
            yield Problem(
                file=file,
                key=f"{key}.{where}",
                problem="cannot run in another environment: its interpreter is not known",
                allowed=f"begin it with a Python or one of {', '.join(sorted(LAUNCHERS))} (env and variables "
                f"before it), or remove {key}.environments",
                value=show(words),
            )


def _check_interpreter(environment: EnvironmentSettings, table: str, file: str) -> Iterator[Problem]:
    if (environment.python is None) == (environment.image is None):
        problem = "names neither python nor image" if environment.python is None else "names both python and image"
        allowed = "set python to another interpreter's path, or image to a container image"
        yield Problem(file=file, key=table, problem=problem, allowed=allowed)
    if environment.image is None:
        for option in ("mounts", "devices"):
            if getattr(environment, option):
                allowed = f"set {table}.image, or remove {option}"
                yield Problem(file=file, key=f"{table}.{option}", problem="needs an image", allowed=allowed)
    elif environment.image.startswith("-"):
        problem, allowed = "is an option of podman", "an image as `podman images` lists it"
        yield Problem(file=file, key=f"{table}.image", problem=problem, allowed=allowed, value=show(environment.image))


def _check_triage(job: JobSettings, key: str, file: str, *, agent: bool) -> Iterator[Problem]:
    """Require kept generations and the agent for automatic triage: replays may overwrite saves and need the agent."""
    needs = [] if job.checkpoints.keep else [("kept generations", f"set {key}.checkpoints.keep = true")]
    needs += [] if agent else [("the agent, which is switched off", "set supervisor.agent = true")]
    for what, remedy in needs if job.triage == "auto" else ():
        allowed = f'{remedy}, or triage = "manual"'
        yield Problem(file=file, key=f"{key}.triage", problem=f"needs {what}", allowed=allowed, value=show(job.triage))


def _check_commands(job: JobSettings, key: str, file: str) -> Iterator[Problem]:
    cpu = job.profiles.cpu
    commands = {
        "command": job.command,
        "resume.command": job.resume.command,
        "profiles.cpu.command": cpu.command,
        "profiles.cpu.resume_command": cpu.resume_command,
    }
    for where, words in commands.items():
        if words and not words[0]:
            allowed = "the first word is the program; the others may be empty"
            yield Problem(file=file, key=f"{key}.{where}[0]", problem="is empty", allowed=allowed, value=show(""))
    for placeholder in (PLACEHOLDER, NUMBER):
        if not any(placeholder in word for word in job.command):
            continue
        yield Problem(
            file=file,
            key=f"{key}.command",
            problem=f"contains {placeholder}, but it starts from the beginning",
            allowed=f"put the command that resumes into {key}.resume.command",
            value=show(job.command),
        )


def _check_resume(job: JobSettings, key: str, file: str) -> Iterator[Problem]:
    """Warn about a job that names checkpoints but has no way to resume from one."""
    resumes = job.resume.command is not None or job.resume.to is not None or job.resume.set_newer_aside
    if not job.checkpoints.paths or resumes or any(Path(word).name in RESUMED_BY_THE_AGENT for word in job.command):
        return
    yield Problem(
        file=file,
        key=f"{key}.checkpoints.paths",
        problem="names checkpoints but no way to resume from them: each retry runs the command unchanged",
        allowed=f"set {key}.resume.command or {key}.resume.to, unless the training resumes by itself (ultralytics, "
        "Hugging Face, Lightning, rocm_agent.resume_from)",
        value=show(job.checkpoints.paths),
        level=Level.WARNING,
    )


def _check_homes(job: JobSettings, key: str, file: str) -> Iterator[Problem]:
    """Warn about the home of a user who is not known, which may be so on this machine alone."""
    to = [("resume.to", job.resume.to)] if job.resume.to is not None else []
    for where, path in (*to, *(("checkpoints.paths", pattern) for pattern in job.checkpoints.paths)):
        if path.startswith("~") and with_home(path) == path:
            yield Problem(
                file=file,
                key=f"{key}.{where}",
                problem="names a home directory that does not exist",
                allowed="write an absolute path",
                value=show(path),
                level=Level.WARNING,
            )


def _check_patterns(job: JobSettings, key: str, file: str, looks: PathLooks) -> Iterator[Problem]:
    """Warn about a pattern of checkpoints that is a folder: no file in it would be found."""
    for pattern in job.checkpoints.paths:
        path = Path(place_of(pattern, job.cwd or ""))
        if not ends_with_name(pattern) or has_magic(str(path)) or not path.is_absolute():
            continue
        try:
            is_folder = stat.S_ISDIR(looks.look(path).mode)
        except OSError:
            continue  # it is saved later, or cannot be looked at from here
        if is_folder:
            yield Problem(
                file=file,
                key=f"{key}.checkpoints.paths",
                problem="names a folder, in which no file is looked for",
                allowed=advise(pattern),
                value=show(pattern),
                level=Level.WARNING,
            )


def _check_local_paths(job: JobSettings, key: str, file: str, looks: PathLooks) -> Iterator[Problem]:
    """Warn about missing files and folders; they may be mounted when the job starts."""
    if job.cwd is not None and (
        problem := _find_problem(looks, job.cwd, stat.S_ISDIR, "is not a directory on this machine")
    ):
        yield _build_absent_problem(file, f"{key}.cwd", problem, job.cwd)
    for where, command in (("command", job.command), ("resume.command", job.resume.command)):
        if command and command[0].startswith("/"):
            problem = _find_problem(looks, command[0], stat.S_ISREG, "is not a file on this machine")
            if problem is not None:
                yield _build_absent_problem(file, f"{key}.{where}[0]", problem, command[0])
    for name, environment in job.environments.items():
        table = join(f"{key}.environments", name)
        if environment.python is not None:
            problem = _find_problem(looks, environment.python, stat.S_ISREG, "is not a file on this machine")
            if problem is not None:
                yield _build_absent_problem(file, f"{table}.python", problem, environment.python)
        elif environment.image is not None:
            found = [_find_problem(looks, f"{place}/podman", stat.S_ISREG, NO_PODMAN) for place in PROGRAM_FOLDERS]
            if None not in found:
                yield _build_absent_problem(file, f"{table}.image", found[-1] or NO_PODMAN, environment.image)


def _find_problem(looks: PathLooks, path: str, is_right: Callable[[int], bool], absent: str) -> str | None:
    """Return what is wrong with a path; None where what lies there is of the right kind."""
    try:
        return None if is_right(looks.look(path).mode) else absent
    except (FileNotFoundError, NotADirectoryError):
        return absent
    except SilentPathError as silent:
        return f"is on a file system that does not answer: {silent.explanation}"
    except OSError as error:
        return f"cannot be looked at: {error.strerror}"


def _check_snapshots(job: JobSettings, key: str, file: str) -> Iterator[Problem]:
    every = job.snapshot_every_s
    if every == "auto" or (not isinstance(every, str) and every >= 0):
        return
    problem, allowed = "is not an interval", 'allowed: seconds (0 or false: none) or "auto"'
    yield Problem(file=file, key=f"{key}.snapshot_every_s", problem=problem, allowed=allowed, value=show(every))


def _build_absent_problem(file: str, key: str, problem: str, value: str) -> Problem:
    allowed = "it must be there when the job starts"
    return Problem(file=file, key=key, problem=problem, allowed=allowed, value=show(value), level=Level.WARNING)


def _check_texts(alert: AlertSettings, key: str, file: str) -> Iterator[Problem]:
    """Yield what is wrong with the places of a receiver's address and secrets: NAME, NAME_file, NAME_env."""
    stems = [name.removesuffix("_file") for name in alert.__struct_fields__ if name.endswith("_file")]
    for stem in stems:
        places = [name for name in (stem, f"{stem}_file", f"{stem}_env") if hasattr(alert, name)]
        given = [name for name in places if getattr(alert, name) is not None]
        if len(given) > 1 or (stem in alert.REQUIRED and not given):
            problem = f"is set together with {' and '.join(given[1:])}" if given else "is missing"
            yield Problem(
                file=file,
                key=f"{key}.{given[0] if given else stem}",
                problem=problem,
                allowed=f"needed: {'exactly' if stem in alert.REQUIRED else 'at most'} one of {', '.join(places)}",
            )


def _check_url(alert: AlertSettings, key: str, file: str) -> Iterator[Problem]:
    url = getattr(alert, "url", None)
    if url is not None and not _is_web_address(url):
        yield Problem(
            file=file,
            key=f"{key}.url",
            problem="is not an HTTP address",
            allowed='allowed: "https://HOST/..." or "http://HOST/..." (not shown: it may contain a token)',
        )
    if url is not None and _read_mode(Path(file)) & stat.S_IROTH:
        yield Problem(
            file=file,
            key=f"{key}.url",
            problem="can be read by every user of this machine and may contain a token",
            allowed=f"use url_file, or chmod o-r {file}",
            level=Level.WARNING,
        )


def _is_web_address(url: str) -> bool:
    try:
        parts = urlsplit(url)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0 and url.isprintable()
    except ValueError:
        return False


def _check_zone(name: str, alert: AlertSettings, key: str, file: str) -> Iterator[Problem]:
    """Yield a warning of a time zone that is not known here: its receiver is used, with times in UTC."""
    text = explain_zone(name, alert)
    if text is not None:
        key = f"{key}.time_zone"
        problem, _, allowed = text.removeprefix(f"alerts.{name}.time_zone: ").rpartition("; ")
        yield Problem(file=file, key=key, problem=problem, allowed=allowed, level=Level.WARNING)


def _check_places(alert: AlertSettings, key: str, file: str, looks: PathLooks) -> Iterator[Problem]:
    """Yield what is wrong with the variables and files that hold a receiver's address and secrets."""
    for name in alert.__struct_fields__:
        value = getattr(alert, name)
        if name.endswith("_env") and value is not None and VARIABLE.fullmatch(value) is None:
            yield Problem(
                file=file,
                key=f"{key}.{name}",
                problem="is not the name of an environment variable",
                allowed="write the variable's name, not its value",
            )
        if name.endswith("_file") and value is not None:
            yield from _secret_file(Path(value), f"{key}.{name}", file, looks)


def _secret_file(path: Path, key: str, file: str, looks: PathLooks) -> Iterator[Problem]:
    """Yield what is wrong with a file of a receiver: warnings, for trainings are watched without a receiver, too."""
    options, reader = install_as()
    try:
        found = looks.look(path)
    except PermissionError:
        if reader is not None and reader[0] == os.geteuid():  # else only the daemon's user may see it, as it should be
            allowed = f"let {DAEMON_USER} enter its folder, or put it into one that it may enter"
            yield _of_secret_file(file, key, path, f"cannot be reached by the daemon's user {DAEMON_USER}", allowed)
        return
    except SilentPathError as silent:
        problem, allowed = "is on a file system that does not answer", "put it where it can be read at any time"
        yield _of_secret_file(file, key, path, f"{problem}: {silent.explanation}", allowed)
        return
    except OSError as error:
        allowed = f"make it: install {options}/dev/null {path}, then write the text into it"
        yield _of_secret_file(file, key, path, error.strerror or "cannot be read", allowed)
        return
    if not stat.S_ISREG(found.mode):
        yield _of_secret_file(file, key, path, "is not a regular file", "needed: a file")
    elif found.mode & stat.S_IRWXO:
        problem = f"is open to everybody (mode {stat.S_IMODE(found.mode):04o})"
        yield _of_secret_file(file, key, path, problem, f"chmod 600 {path}")
    elif reader is not None and not may_read(found, *reader):
        problem = f"cannot be read by the daemon's user {DAEMON_USER} (mode {stat.S_IMODE(found.mode):04o})"
        allowed = f"chown {DAEMON_USER} {path} && chmod 600 {path}"
        yield _of_secret_file(file, key, path, problem, allowed)


def _of_secret_file(file: str, key: str, path: Path, problem: str, allowed: str) -> Problem:
    return Problem(file=file, key=key, problem=problem, allowed=allowed, value=show(str(path)), level=Level.WARNING)


def install_as() -> tuple[str, tuple[int, frozenset[int]] | None]:
    """Return the options of install(1) for a file of a receiver, and uid and gids of the user that has to read it.

    Root and the daemon's user check the configuration of the system's daemon; anybody else checks their own. The file
    is given to that user, not to its group: the group's members may talk to the daemon, and are not to know the secret.
    """
    try:
        user = pwd.getpwnam(DAEMON_USER)
    except KeyError:  # not set up yet: a daemon that root starts in the foreground
        return "-m 600 ", None
    if os.geteuid() not in (0, user.pw_uid):
        return "-m 600 ", None
    return f"-m 600 -o {DAEMON_USER} ", (user.pw_uid, frozenset(os.getgrouplist(DAEMON_USER, user.pw_gid)))


def may_read(found: Found, uid: int, gids: frozenset[int]) -> bool:
    """Whether the mode of a file lets a user read it; its folders and access lists are not looked at."""
    if found.uid == uid:
        return bool(found.mode & stat.S_IRUSR)
    if found.gid in gids:
        return bool(found.mode & stat.S_IRGRP)
    return bool(found.mode & stat.S_IROTH)


def _read_mode(path: Path) -> int:
    try:
        return path.stat().st_mode
    except OSError:
        return 0
