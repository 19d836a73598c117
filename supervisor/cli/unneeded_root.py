"""Refuses commands to root that an unprivileged user can run: they read what trainings and the daemon wrote."""

from __future__ import annotations

import os
import pwd

from supervisor.cli.app import App
from supervisor.cli.errors import RefusedError
from supervisor.core.sanitize import one_line


def refuse_root(app: App, command: str, instead: str | None = None) -> None:
    """Raise RefusedError for root, unless the daemon runs as root; `command` is the command line without its name.

    `instead` is the hint to give; None for the same command as the daemon's user. Where daemon and trainings run as
    root, as in a container, there is no other user to run it as.
    """
    if os.geteuid() != 0:
        return
    from supervisor.cli import configured  # noqa: PLC0415  # the settings are needed for root only

    try:
        owner = os.stat(configured.settings(app).supervisor.state_dir).st_uid  # noqa: PTH116 - a str, used once
    except OSError:
        return  # nothing was recorded here
    if owner != 0:
        again = f"sudo -u {user_name(owner)} supervisorctl {one_line(command)}"
        remedy = f"any member of the daemon's group may run it, or: {again}" if instead is None else instead
        raise RefusedError("this command does not need root and refuses to run as root", remedy, "refused")


def user_name(uid: int) -> str:
    """Return a user's name, as sudo takes it."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"'#{uid}'"
