"""Imports a library that only one format of `export` needs; where it is missing, names the extra that brings it."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from supervisor.cli.errors import CliError


def load_library(module: str, extra: str) -> Any:
    """Return a module of the extra `extra`; raise CliError where it cannot be imported."""
    try:
        return import_module(module)
    except ImportError as error:
        remedy = (
            f"pip install 'rocm-supervisor[{extra}]'; with the Debian package, in an environment of its own: "
            "that supervisorctl reads the same record"
        )
        raise CliError(f"export --to {extra} needs a library: {error}", remedy, "missing_library") from error
