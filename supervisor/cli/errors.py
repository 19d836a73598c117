"""Errors of the command line: each has a message, a hint, a code and an exit status."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any, NoReturn

import click

from supervisor.cli import exit_codes
from supervisor.control.client import ControlError, ForbiddenError, UnreachableError
from supervisor.control.refusals import NoSuchJob
from supervisor.core.sanitize import sanitize


def suggest_nearest(name: str, known: Iterable[str]) -> str:
    """Return the end of a message about an unknown name: the nearest known one, or nothing."""
    import difflib  # noqa: PLC0415  # 7 ms to import, needed after a typo only

    nearest = difflib.get_close_matches(name, list(known), n=1)
    return f"; did you mean {nearest[0]!r}?" if nearest else ""


class CliError(click.ClickException):
    """An error with a message and a hint; each exit code has a subclass."""

    exit_code = exit_codes.FAILED

    def __init__(self, message: str, remedy: str = "", code: str = "failed") -> None:
        super().__init__(message)
        self.remedy = remedy
        self.code = code
        context = click.get_current_context(silent=True)
        self.as_json = context is not None and wants_json(context)

    def show(self, file: Any = None) -> None:
        """Print the error to stderr: two lines of text, or with --json one object."""
        if self.as_json:
            error = {"code": self.code, "message": sanitize(self.message), "remedy": sanitize(self.remedy)}
            click.echo(json.dumps({"schema": 1, "error": error}), err=True)
            return
        click.echo(f"error: {sanitize(self.message)}", err=True)
        if self.remedy:
            click.echo(f"  try: {sanitize(self.remedy)}", err=True)


class NoDaemonError(CliError):
    """The daemon cannot be reached."""

    exit_code = exit_codes.UNREACHABLE


class WrongUsageError(CliError):
    """The command line is invalid."""

    exit_code = exit_codes.USAGE

    def __init__(self, message: str, remedy: str) -> None:
        super().__init__(message, remedy, "usage")


class RefusedError(CliError):
    """The daemon refused the request."""

    exit_code = exit_codes.REFUSED


def explained(error: ControlError) -> CliError:
    """Return the command-line error for a failed request to the daemon."""
    kind = CliError
    if isinstance(error, UnreachableError):
        kind = NoDaemonError
    elif isinstance(error, ForbiddenError) or error.code in ("refused", "not_allowed"):
        kind = RefusedError
    return kind(str(error), error.remedy, error.code)


def wants_json(context: click.Context) -> bool:
    """Whether --json was given; usage errors occur before there is an App."""
    root = context.find_root()
    return getattr(root.obj, "json", None) is True or root.params.get("as_json") is True


def raise_no_such_job(job: str, known: Sequence[str]) -> NoReturn:
    """Raise the error of a job that is not configured, in the words in which the daemon refuses it."""
    refusal = NoSuchJob(job, known)
    raise CliError(str(refusal), refusal.remedy, refusal.code)
