"""What every command shares: the global options, printing, and errors with their exit codes."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NoReturn

import click

from supervisor.cli.errors import explained
from supervisor.cli.paths import find_config, find_socket
from supervisor.cli.table import Pen
from supervisor.control.client import Client, ControlError, UnreachableError
from supervisor.core.sanitize import one_line, sanitized


class UncheckedPath(click.Path):
    """A path that is not looked at before the command runs: its file system may hang, and the command is to say so."""

    def convert(self, value: str | os.PathLike[str], *_: object) -> Path:
        """Return the path as it was given."""
        return Path(value)


def wall_clock() -> float:
    """Return Unix seconds, for ages such as "12 min ago"."""
    return time.time_ns() / 1e9


@dataclass
class App:
    """The global options, and what is derived from them on first use."""

    config_given: Path | None = None
    socket_given: Path | None = None
    json: bool = False
    fleet: bool = False
    """Whether the fleet's database is read instead of this machine's daemon."""
    color: str = "auto"
    now: Callable[[], float] = wall_clock
    sys_root: Path = Path("/sys")
    reads_offline: bool = False
    """Whether an answer came from the record because no daemon was reached; this is printed once."""

    @cached_property
    def config(self) -> Path:
        """The configuration file in use, whether it exists or not."""
        return find_config(self.config_given, os.environ)

    @cached_property
    def socket(self) -> Path:
        """The daemon's socket."""
        return self.socket_given or find_socket(self.config, os.environ)

    @cached_property
    def pen(self) -> Pen:
        """Colours and width of stdout."""
        terminal = sys.stdout.isatty()
        plain = bool(os.environ.get("NO_COLOR")) or os.environ.get("TERM") == "dumb"
        color = self.color == "always" or (self.color == "auto" and terminal and not plain)
        return Pen(color=color, width=_terminal_columns() if terminal else None)

    def get(self, route: str, **query: str | int | None) -> dict[str, Any]:
        """Send a GET request to the daemon; raise CliError if it fails."""
        try:
            return Client(self.socket).get(route, **query)
        except ControlError as error:
            raise explained(error) from error

    def post(self, route: str, **body: object) -> dict[str, Any]:
        """Send a POST request to the daemon; raise CliError if it fails."""
        try:
            return Client(self.socket).post(route, **body)
        except ControlError as error:
            raise explained(error) from error

    def get_recorded(self, route: str, **query: str | int | None) -> dict[str, Any]:
        """Send a GET request about the record; if the daemon cannot be reached, read it here, with a note to stderr.

        `route` is one of `control.record_view.READS`. With --fleet the records of all nodes are read.
        """
        if self.fleet:
            from supervisor.cli.fleet import answers  # noqa: PLC0415  # SQLAlchemy is imported only where it is used

            return answers.answer(self, route, query)
        try:
            return Client(self.socket).get(route, **query)
        except UnreachableError as error:
            from supervisor.cli import offline  # noqa: PLC0415  # only while the daemon is not running

            answer = offline.answer(self, route, query)
            if not self.reads_offline:
                click.echo(f"note: {one_line(str(error))}; reading its record instead", err=True)
                self.reads_offline = True
            return answer
        except ControlError as error:
            raise explained(error) from error

    def print(self, text: str) -> None:
        """Print text that was sanitized when it was composed."""
        click.echo(text, color=True)

    def print_json(self, value: object) -> None:
        """Print one JSON document, its strings sanitized."""
        click.echo(json.dumps(sanitized(value), indent=2, ensure_ascii=False))

    def print_json_lines(self, values: Iterable[object]) -> None:
        """Print one JSON object per line, sanitized as in `print_json`."""
        for value in values:
            click.echo(json.dumps(sanitized(value), ensure_ascii=False))


def _set_json(context: click.Context, _parameter: click.Parameter, value: bool) -> None:  # noqa: FBT001  # click's signature
    app = context.find_object(App)
    if value and app is not None:
        app.json = True


def _terminal_columns() -> int | None:
    """Return the width of the terminal; shutil takes 7 ms to import."""
    try:
        return os.get_terminal_size(sys.stdout.fileno()).columns or None
    except OSError:
        return None


json_option = click.option(
    "--json", is_flag=True, expose_value=False, callback=_set_json, help="Print JSON; also accepted before the command."
)
"""For every command that prints data: `status --json` means the same as `--json status`."""

pass_app = click.make_pass_decorator(App)


def end(exit_code: int) -> NoReturn:
    """End the process with an exit code, without a message."""
    click.get_current_context().exit(exit_code)
