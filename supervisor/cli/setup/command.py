"""`supervisorctl setup`: install units, polkit rules and settings, printing each step; no unit is enabled."""

from __future__ import annotations

import grp
import os
import pwd
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import click

from supervisor.cli.errors import CliError, WrongUsageError
from supervisor.cli.paths import state_directory, user_config
from supervisor.cli.setup.plan import (
    CONFIG,
    GROUP,
    OWNER_CONF,
    PACKAGE,
    Installation,
    Owner,
    RunCommand,
    Step,
    WriteFile,
    read_owner,
    system_plan,
    user_plan,
)
from supervisor.cli.setup.removal import left, owner_removal, system_removal, undo, user_removal
from supervisor.runner import shim
from supervisor.runner.units import BOOTED
from supervisor.shipped import shipped

UNPRIVILEGED_UID = 65534
"""Used in place of the daemon's user, who may not exist yet: both can read only world-readable files."""
POLKIT_WITH_RULES = (0, 106)
"""Older versions do not support JavaScript rules and cannot distinguish units."""


@click.command("setup", short_help="Install units, polkit rules and settings for systemd.")
@click.option("--user", "for_user", is_flag=True, help="For `systemctl --user` of the calling user; needs no root.")
@click.option("--owner", metavar="NAME", help="User who runs the trainings (default: the one who called sudo).")
@click.option(
    "--prefix",
    type=click.Path(path_type=Path, file_okay=False),
    help="Only write the files, below this directory: for packages.",
)
@click.option("--dry-run", is_flag=True, help="Print what would be done, and do nothing.")
@click.option("--remove", is_flag=True, help="Uninstall: save and end the trainings, remove units and polkit rules.")
@click.option("--purge", is_flag=True, help="With --remove: also the settings, the record and kept checkpoints.")
def command(  # noqa: PLR0913 - its options
    *, for_user: bool, owner: str | None, prefix: Path | None, dry_run: bool, remove: bool, purge: bool
) -> None:
    """Install the units of this installation. A second call changes nothing; config.toml is never overwritten."""
    if purge and not remove:
        raise WrongUsageError("--purge needs --remove", "supervisorctl setup --remove --purge")
    if remove:
        _remove_installation(for_user=for_user, dry_run=dry_run, purge=purge)
        return
    try:
        installation = here()
        if prefix is None and shutil.which("systemctl") is None:
            raise ValueError("this machine has no systemd: run rocm-supervisord in the foreground instead")
        if for_user:
            steps = _for_user(installation, owner, checked=prefix is None)
        else:
            present = None if prefix is not None else read_owner(OWNER_CONF)
            owner = owner or present or os.environ.get("SUDO_USER")  # whoever repeats it does not take over
            if prefix is None:
                _check_system(installation, owner, dry_run=dry_run)
                _check_handover(owner, present)
            steps = system_plan(installation, _find_owner(owner), files_only=prefix is not None, booted=BOOTED.is_dir())
        for step in steps:
            click.echo(perform(step, prefix=prefix, dry_run=dry_run))
    except (OSError, ValueError) as error:
        raise click.ClickException(str(error)) from error
    if prefix is None:
        booted = BOOTED.is_dir() and not dry_run
        left = remaining(for_user=for_user, owner=owner, packaged=installation.packaged, booted=booted)
        click.echo("\n  ".join(["\nTo do manually:", *left]))


def _remove_installation(*, for_user: bool, dry_run: bool, purge: bool) -> None:
    if for_user == (os.geteuid() == 0) and not dry_run:
        who = "without sudo" if for_user else "as root (sudo), or use --user for your own systemd"
        raise CliError("this user cannot remove this installation's units", f"run it {who}")
    packaged = not for_user and is_packaged()
    if packaged and purge:
        raise CliError("rocm-supervisor was installed as a Debian package", "apt purge rocm-supervisor")
    config = user_config(os.environ) if for_user else CONFIG
    state = state_directory(config)
    if for_user:
        steps = user_removal(Path.home(), state, purge=purge)
    else:
        steps = owner_removal() if packaged else system_removal(state, purge=purge)
    try:
        for step in steps:
            click.echo(undo(step, dry_run=dry_run))
    except (OSError, ValueError) as error:
        raise click.ClickException(str(error)) from error
    click.echo("\nNot removed:")
    for line in left(state, config=config, purge=purge, packaged=packaged):
        click.echo(f"  {line}")


def _check_handover(owner: str | None, present: str | None) -> None:
    """Raise ValueError where an earlier setup named another owner: all jobs would change hands."""
    if present not in (None, owner):
        raise ValueError(
            f"the trainings of this machine run as {present}, and the system's daemon has one owner: {owner} can run a "
            f"daemon of their own (`supervisorctl setup --user`). To hand this one over, stop its jobs, remove "
            f"{OWNER_CONF}, and run this again"
        )


def _find_owner(name: str | None) -> Owner | None:
    """Return the owner with their primary group; if the user does not exist (package build), a group of that name."""
    if name is None:
        return None
    try:
        person = pwd.getpwnam(name)
        group = grp.getgrgid(person.pw_gid)
    except KeyError:
        return Owner(name=name, group=name)
    sharing = {*group.gr_mem, *(other.pw_name for other in pwd.getpwall() if other.pw_gid == person.pw_gid)}
    home = _closed_home(name)
    private = sharing == {name} and home is not None and home.stat().st_gid == person.pw_gid
    return Owner(name=name, group=group.gr_name, closed_home=home if private else None)


def here() -> Installation:
    """Return the paths of this installation; raise FileNotFoundError if a part of it is missing."""
    python = Path(sys.executable)
    daemon = python.parent / "rocm-supervisord"
    if not daemon.exists():
        raise FileNotFoundError(f"{daemon} is missing: install rocm-supervisor into the environment of {python}")
    return Installation(
        bin=python.parent,
        python=python,
        shim=Path(shim.__file__).resolve(),
        systemd=shipped("systemd"),
        example=shipped("config.toml"),
        packaged=is_packaged(),
    )


def is_packaged() -> bool:
    """Whether this code is the Debian package's."""
    return shipped("systemd").is_relative_to(PACKAGE)


def perform(step: Step, *, prefix: Path | None, dry_run: bool) -> str:
    """Execute one step below `prefix` and return a line that describes it.

    Raises OSError, or ValueError for a command that failed.
    """
    if isinstance(step, RunCommand):
        if dry_run:
            return f"would run    {' '.join(step.argv)}"
        _run_command(step.argv)
        return f"ran          {' '.join(step.argv)}"
    path = step.path if prefix is None else prefix.absolute() / step.path.relative_to("/")
    if step.keep and path.exists():
        return f"kept         {path} (existing file)"
    there = path.read_text() if path.exists() else None
    if there == step.text:
        return f"unchanged    {path}"
    what = "write" if there is None else "replace"
    if dry_run:
        return f"would {what:<6} {path}"
    _write_file(path, step, group=None if prefix else step.group)
    return f"{'wrote' if there is None else 'replaced':<12} {path}"


def _write_file(path: Path, step: WriteFile, group: str | None) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.new")
    draft.unlink(missing_ok=True)
    with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(step.text)
        if group is not None:
            shutil.chown(draft, group=group)
        os.fchmod(file.fileno(), step.mode)
    draft.replace(path)


def _run_command(argv: Sequence[str]) -> None:
    try:
        done = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        raise ValueError(
            f"{argv[0]} is not installed: do manually what `{' '.join(argv)}` does, then run setup again"
        ) from None
    if done.returncode != 0:
        raise ValueError(f"`{' '.join(argv)}` failed: {done.stderr.strip() or done.stdout.strip()}")


# --- checks -------------------------------------------------------------------------------------------------------


def _for_user(installation: Installation, owner: str | None, *, checked: bool) -> tuple[Step, ...]:
    if owner is not None:
        raise ValueError(
            "--owner and --user exclude each other: units of `systemctl --user` run only your own trainings"
        )
    if checked and os.geteuid() == 0:
        raise ValueError("--user installs for the calling user: run it without sudo, or omit --user")
    return user_plan(installation, Path.home())


def _check_system(installation: Installation, owner: str | None, *, dry_run: bool) -> None:
    if os.geteuid() != 0 and not dry_run:
        raise ValueError("setup writes below /etc: run it as root (sudo), or use --user for your own systemd")
    if owner is None:
        raise ValueError("--owner NAME is required: the user who owns data, checkpoints and Python environment")
    try:
        person = pwd.getpwnam(owner)
    except KeyError:
        raise ValueError(f"--owner {owner}: no such user on this system") from None
    if person.pw_uid == 0:
        raise ValueError("--owner root: the daemon could then run any program as root; use an unprivileged user")
    version = polkit_version()
    if version is not None and version < POLKIT_WITH_RULES:
        number = ".".join(map(str, version))
        raise ValueError(
            f"polkit {number} does not support JavaScript rules, so the daemon cannot start units: use `setup --user`"
        )
    if os.geteuid() == 0:
        groups = os.getgrouplist(owner, person.pw_gid)
        check_runs(installation.python, installation.shim, owner, person.pw_uid, groups)
        check_runs(
            installation.python,
            installation.bin / "rocm-supervisord",
            "the daemon's user",
            UNPRIVILEGED_UID,
            [UNPRIVILEGED_UID],
        )


def check_runs(python: Path, file: Path, who: str, uid: int, groups: Sequence[int]) -> None:
    """Raise ValueError, naming the inaccessible directory, unless that user can run `python` and read `file`."""
    try:
        done = subprocess.run(
            [str(python), "-I", "-S", "-c", "import sys; open(sys.argv[1]).close()", str(file)],
            user=uid,
            group=groups[0],
            extra_groups=groups,
            cwd="/",
            stdin=subprocess.DEVNULL,
            capture_output=True,
            check=False,
        )
    except PermissionError:
        pass
    else:
        if done.returncode == 0:
            return
    closed = next((bar for path in (python, file) if (bar := barrier(path, uid, groups))), None)
    place = f": {closed} is not accessible (mode {closed.stat().st_mode & 0o777:04o})" if closed else ""
    raise ValueError(
        f"{who} cannot use {python} and {file}{place}. Install rocm-supervisor in a world-readable directory "
        "(python3 -m venv /opt/rocm-supervisor), or use --user"
    )


def barrier(path: Path, uid: int, groups: Sequence[int]) -> Path | None:
    """Return the first parent directory of `path`, links followed, that the user may not enter by its mode bits."""
    for end in (path.parent.resolve(), path.resolve().parent):
        for folder in reversed((end, *end.parents)):
            status = folder.stat()
            shift = 6 if status.st_uid == uid else 3 if status.st_gid in groups else 0
            if not status.st_mode >> shift & 1:
                return folder
    return None


def polkit_version() -> tuple[int, ...] | None:
    """Return polkit's version, for example (0, 105) or (122,); None if it is not installed or not reported."""
    try:
        command = ["pkaction", "--version"]
        output = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False).stdout
    except OSError:
        return None
    found = re.search(r"(\d+(?:\.\d+)*)\s*$", output)
    return tuple(map(int, found.group(1).split("."))) if found else None


def _closed_home(owner: str) -> Path | None:
    """Return the owner's home directory if its group may not read it; None if it may, or if it is unknown."""
    try:
        home = Path(pwd.getpwnam(owner).pw_dir)
        return None if home.stat().st_mode & 0o050 == 0o050 else home
    except (KeyError, OSError):
        return None


def remaining(*, for_user: bool, owner: str | None, packaged: bool = False, booted: bool = False) -> list[str]:
    """Return the steps that setup does not do, one command or sentence per line.

    `booted`: setup had systemd read the new units, and restarted the daemon of the package.
    """
    if for_user:
        return [
            "edit ~/.config/rocm-supervisor/config.toml",
            "systemctl --user daemon-reload",
            "systemctl --user enable --now rocm-supervisor",
            "loginctl enable-linger    (to keep it running while you are not logged in)",
        ]
    lines = ["edit /etc/rocm-supervisor/config.toml"]
    if polkit_version() is None:
        lines.append("install polkit (Debian and Ubuntu: apt install polkitd): it lets the daemon start trainings")
    if not booted:
        lines.append("systemctl daemon-reload")
    # The package has enabled and started the daemon; it takes its new rights by a restart.
    after_package = "systemctl reload rocm-supervisor" if booted else "systemctl restart rocm-supervisor"
    lines.append(after_package if packaged else "systemctl enable --now rocm-supervisor")
    program = Path(sys.executable).with_name("supervisorctl")
    if not packaged and shutil.which(program.name) is None:
        lines.append(f"ln -s {program} /usr/local/bin/    (for everybody's PATH, and sudo's)")
    if owner is not None and (closed := _closed_home(owner)) is not None:
        lines.append(f"chmod g+rx {closed}    (gives the daemon read access to the checkpoints in it)")
    return [*lines, f"{owner} must log in again before using supervisorctl: group {GROUP} takes effect at login"]
