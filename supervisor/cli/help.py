"""`supervisorctl help [TOPIC]`: help for a command, and what the exit codes mean."""

from __future__ import annotations

import click

from supervisor.cli import exit_codes

TOPIC = "exit-codes"


@click.command("help")
@click.argument("topic", required=False)
@click.pass_context
def command(context: click.Context, topic: str | None) -> None:
    """Show help, for a command with its name as TOPIC, or what the exit codes mean with `exit-codes`."""
    root = context.find_root()
    if topic == TOPIC:
        click.echo(exit_codes.TEXT, nl=False)
        return
    if topic is None:
        click.echo(root.get_help())
        return
    assert isinstance(root.command, click.Group)
    _, found, _ = root.command.resolve_command(root, [topic])
    assert found is not None
    with click.Context(found, info_name=topic, parent=root) as inner:
        click.echo(found.get_help(inner))
