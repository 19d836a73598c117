"""`supervisorctl help [TOPIC]`: help for a command, what the exit codes mean, and the longer texts of `topics/`."""

from __future__ import annotations

from importlib.resources import files
from typing import TYPE_CHECKING

import click

from supervisor.cli import exit_codes
from supervisor.cli.errors import suggest_nearest

if TYPE_CHECKING:
    from importlib.abc import Traversable

EXIT_CODES = "exit-codes"
_SUFFIX = ".md"


def list_topics() -> dict[str, str]:
    """Return the topics and the title of each, by name; that of exit codes last."""
    texts = {path.name.removesuffix(_SUFFIX): path.read_text("utf-8") for path in _list_files()}
    titles = {name: text.partition("\n")[0].removeprefix("# ") for name, text in sorted(texts.items())}
    return {**titles, EXIT_CODES: "Exit codes of every command"}


def read_topic(name: str) -> str | None:
    """Return the text of a topic; None for a name that is none."""
    if name == EXIT_CODES:
        return exit_codes.TEXT
    return next((path.read_text("utf-8") for path in _list_files() if path.name == name + _SUFFIX), None)


def _list_files() -> list[Traversable]:
    return [path for path in files("supervisor.cli").joinpath("topics").iterdir() if path.name.endswith(_SUFFIX)]


def _complete_topic(context: click.Context, _parameter: click.Parameter, incomplete: str) -> list[str]:
    root = context.find_root()
    assert isinstance(root.command, click.Group)
    return [name for name in (*root.command.list_commands(root), *list_topics()) if name.startswith(incomplete)]


@click.command("help")
@click.argument("topic", required=False, shell_complete=_complete_topic)
@click.pass_context
def command(context: click.Context, topic: str | None) -> None:
    """Show help for a command, or the text of a topic; without TOPIC an overview of both."""
    root = context.find_root()
    if topic is None:
        click.echo(root.get_help())
        formatter = root.make_formatter()
        with formatter.section("Topics (supervisorctl help TOPIC)"):
            formatter.write_dl(list(list_topics().items()))
        click.echo("\n" + formatter.getvalue(), nl=False)
        return
    assert isinstance(root.command, click.Group)
    known = root.command.list_commands(root)
    if topic in known:
        found = root.command.get_command(root, topic)
        assert found is not None
        with click.Context(found, info_name=topic, parent=root) as inner:
            click.echo(found.get_help(inner))
        return
    text = read_topic(topic)
    if text is None:
        nearest = suggest_nearest(topic, (*known, *list_topics()))
        raise click.UsageError(f"no command or topic {topic!r}{nearest}", context)
    click.echo(text, nl=False)
