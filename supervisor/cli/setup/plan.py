"""The plan of `supervisorctl setup`: the files to write and commands to run, as values."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

PLAIN = re.compile(r"[A-Za-z0-9/._+@~:,=-]+")
"""Characters that a path in a unit may have without quoting or escaping."""
GROUP = "rocm-supervisor"
USER_STATE = "~/.local/state/rocm-supervisor"
"""Also in systemd/user/rocm-run@.service, with %h for the home directory."""
CONFIG = Path("/etc/rocm-supervisor/config.toml")
PACKAGE = Path("/usr/lib/rocm-supervisor")
"""Where the Debian package keeps the code; its units, users and polkit rules are the package's own files."""
SYSUSERS = Path("/etc/sysusers.d/rocm-supervisor.conf")
TMPFILES = Path("/etc/tmpfiles.d/rocm-supervisor.conf")
POLKIT_RULES = Path("/etc/polkit-1/rules.d/50-rocm-supervisor.rules")
SYSTEM_UNITS = Path("/etc/systemd/system")
UNITS = (
    "rocm-supervisor.service",
    "rocm-supervisor.socket",
    "rocm-supervisor-web.service",
    "rocm-supervisor-web.socket",
    "rocm-supervisor-fleet.service",
    "rocm-run@.service",
    "rocm-runs.slice",
)
OWNER_CONF = SYSTEM_UNITS / "rocm-run@.service.d" / "owner.conf"
OWNER_DROP_IN = """\
# The user who runs the trainings (written by supervisorctl setup --owner).
[Service]
User={owner}
"""
DAEMON_DROP_IN = """\
# Membership in the owner's group lets the daemon read checkpoints (written by supervisorctl setup --owner).
[Service]
SupplementaryGroups={group}
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Owner:
    """The user who runs the trainings, and the group of that user's files."""

    name: str
    group: str
    closed_home: Path | None = None
    """The home directory, where its group is the owner's alone and may not read it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Installation:
    """Paths of this installation: `bin` contains rocm-supervisord, `python` runs the shim, `systemd` the templates."""

    bin: Path
    python: Path
    shim: Path
    systemd: Path
    example: Path
    """config.toml with every setting."""
    packaged: bool = False
    """Whether units, users, polkit rules and settings came with the Debian package."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteFile:
    """A file to write with exactly `text`; with `keep`, an existing file is not changed, since the user edits it."""

    path: Path
    text: str
    mode: int = 0o644
    group: str | None = None
    keep: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class RunCommand:
    """A command to run; running it a second time changes nothing."""

    argv: tuple[str, ...]


Step = WriteFile | RunCommand
RELOAD = RunCommand(argv=("systemctl", "daemon-reload"))


def system_plan(
    installation: Installation, owner: Owner | None, *, files_only: bool, booted: bool = False
) -> tuple[Step, ...]:
    """Return the steps for the system's systemd, with trainings run by `owner`; `files_only` creates no users.

    `booted`: systemd is running, and reads the new units.
    """
    if installation.packaged:
        return _owner_steps(owner, booted=booted)
    shipped = installation.systemd
    sysusers = WriteFile(path=SYSUSERS, text=(shipped / "rocm-supervisor.sysusers.conf").read_text())
    tmpfiles = WriteFile(path=TMPFILES, text=(shipped / "rocm-supervisor.tmpfiles.conf").read_text())
    steps: list[Step] = [sysusers, tmpfiles]
    if not files_only:
        steps.append(RunCommand(argv=("systemd-sysusers", str(SYSUSERS))))
        steps.append(RunCommand(argv=("systemd-tmpfiles", "--create", str(TMPFILES))))
        if owner is not None:
            steps.append(RunCommand(argv=("usermod", "--append", "--groups", GROUP, owner.name)))
    steps.append(WriteFile(path=POLKIT_RULES, text=(shipped / POLKIT_RULES.name).read_text()))
    steps.extend(_fill_units(installation, shipped, SYSTEM_UNITS))
    steps.extend(_drop_ins(owner))
    steps.append(WriteFile(path=CONFIG, text=installation.example.read_text(), mode=0o640, group=GROUP, keep=True))
    steps.extend(() if files_only else _open_home(owner))
    steps.extend([RELOAD] if booted and not files_only else ())
    return tuple(steps)


def _owner_steps(owner: Owner | None, *, booted: bool) -> tuple[Step, ...]:
    """Return what the Debian package cannot know: who runs the trainings. The daemon, which runs, takes it over."""
    if owner is None:
        return ()
    join = RunCommand(argv=("usermod", "--append", "--groups", GROUP, owner.name))
    restart = (RELOAD, RunCommand(argv=("systemctl", "restart", "rocm-supervisor"))) if booted else ()
    return (join, *_drop_ins(owner), *_open_home(owner), *restart)


def _open_home(owner: Owner | None) -> tuple[RunCommand, ...]:
    """Return what lets the daemon, which joins the owner's group, read the checkpoints in the owner's home."""
    if owner is None or owner.closed_home is None:
        return ()
    return (RunCommand(argv=("chmod", "g+rx", str(owner.closed_home))),)


def read_owner(path: Path) -> str | None:
    """Return the owner whom an earlier setup wrote into a drop-in; None where there is none, or it names no user."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError):
        return None
    return next((line.removeprefix("User=") for line in lines if line.startswith("User=")), None) or None


def _drop_ins(owner: Owner | None) -> tuple[WriteFile, ...]:
    if owner is None:
        return ()
    texts = (
        ("rocm-run@.service", OWNER_DROP_IN.format(owner=owner.name)),
        ("rocm-supervisor.service", DAEMON_DROP_IN.format(group=owner.group)),
    )
    return tuple(WriteFile(path=SYSTEM_UNITS / f"{unit}.d" / "owner.conf", text=text) for unit, text in texts)


def user_plan(installation: Installation, home: Path) -> tuple[WriteFile, ...]:
    """Return the steps for `systemctl --user` of the user with this home directory."""
    settings, found = re.subn(
        r"(?m)^#?state_dir *=.*$", f'state_dir = "{USER_STATE}"', installation.example.read_text(), count=1
    )
    if not found:
        raise ValueError(f"{installation.example} has no state_dir setting: reinstall rocm-supervisor")
    config = home / ".config" / "rocm-supervisor" / "config.toml"
    return (
        *_fill_units(installation, installation.systemd / "user", home / ".config" / "systemd" / "user"),
        WriteFile(path=config, text=settings, mode=0o600, keep=True),
    )


def _fill_units(installation: Installation, templates: Path, target: Path) -> tuple[WriteFile, ...]:
    return tuple(
        WriteFile(path=target / name, text=fill_template((templates / name).read_text(), installation))
        for name in UNITS
    )


def fill_template(template: str, installation: Installation) -> str:
    """Return a unit with this installation's paths. Raises ValueError for a path that would need quoting in a unit."""
    for mark, path in (("@BIN@", installation.bin), ("@PYTHON@", installation.python)):
        if PLAIN.fullmatch(str(path)) is None:
            raise ValueError(
                f"{path} has characters that a systemd unit cannot contain unquoted: install rocm-supervisor in a path "
                "of letters, digits and /._+@~:,=-"
            )
        template = template.replace(mark, str(path))
    return template
