"""Locates what is shipped with the code: migrations, units, the example settings, and its modules as programs."""

from __future__ import annotations

import sys
from pathlib import Path

_PACKAGE = Path(__file__).resolve().parent


def shipped(name: str) -> Path:
    """Return the path of `migrations`, `systemd` or `config.toml`: inside an installed package, else in the checkout.

    Raises FileNotFoundError if it is in neither, which means that the installation is incomplete.
    """
    places = (_PACKAGE / "_shipped" / name, _PACKAGE.parent / name)
    for place in places:
        if place.exists():
            return place
    searched = " and ".join(str(place) for place in places)
    raise FileNotFoundError(
        f"{name} is not part of this installation (searched: {searched}); reinstall rocm-supervisor"
    )


def module_command(name: str) -> tuple[str, ...]:
    """Return the command that runs a module of this installation; its arguments follow.

    `python -m` finds what an environment has. The Debian package's programs run without one (`-I -S`), on a directory
    of their own, and so do their children.
    """
    if not sys.flags.no_site:
        return (sys.executable, "-m", name)
    path = f"import sys; sys.path.insert(0, {str(_PACKAGE.parent)!r})"
    run = f"import runpy; runpy.run_module({name!r}, run_name='__main__', alter_sys=True)"
    return (sys.executable, "-I", "-S", "-c", f"{path}; {run}")
