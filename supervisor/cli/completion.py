"""`supervisorctl completion SHELL`: print the script that completes commands, options and names in a shell."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class


@click.command("completion")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def command(context: click.Context, shell: str) -> None:
    """Print the script for SHELL; bash reads it from ~/.local/share/bash-completion/completions/supervisorctl."""
    root = context.find_root()
    program = root.info_name or "supervisorctl"
    variable = f"_{program}_COMPLETE".replace("-", "_").upper()
    kind = get_completion_class(shell)
    assert kind is not None
    click.echo(kind(root.command, {}, program, variable).source())
