"""Locates the files shipped with the code: migrations, units, the example settings."""

from __future__ import annotations

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
