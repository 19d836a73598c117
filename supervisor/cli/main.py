"""Entry of `supervisorctl`: its commands by name, each imported only when it is used, and the options before them."""

from __future__ import annotations

import importlib
import os
import sys
from pathlib import Path

import click

from supervisor.cli import exits
from supervisor.cli.app import App, WrongUsageError
from supervisor.cli.places import other_supervisor

COMMANDS: dict[str, tuple[str, str]] = {
    "status": ("supervisor.cli.status", "Where every job stands, and the cards."),
    "gpus": ("supervisor.cli.gpus", "Every card: use, memory, heat, power, errors; live with --watch."),
    "history": ("supervisor.cli.history", "What went wrong, what was done about it, and what it cost."),
    "show": ("supervisor.cli.show", "One incident with its story and evidence."),
    "evidence": ("supervisor.cli.evidence", "The evidence of an incident, or all of it in one file."),
    "triage": ("supervisor.cli.triage", "Was it the data, the numerics or the hardware? Replays the bad step."),
    "start": ("supervisor.cli.start", "Start a job, from its newest proven checkpoint."),
    "stop": ("supervisor.cli.stop", "Save and end a job; it stays stopped."),
    "restart": ("supervisor.cli.restart", "Save and end a job, then start it from there."),
    "logs": ("supervisor.cli.logs", "The output of a job."),
    "checkpoints": ("supervisor.cli.checkpoints", "The checkpoints of a job, and which of them are proven."),
    "account": ("supervisor.cli.account", "Where every second of a job's life went, and what each fault cost."),
    "remedies": ("supervisor.cli.remedies", "What retries were given, what came of it, and what was learned."),
    "reload": ("supervisor.cli.reload", "Have the daemon read its configuration again."),
    "explain": ("supervisor.cli.explain", "What a kernel log, a training's output or a saved rocm-smi says."),
    "replay": ("supervisor.cli.replay", "What the rules would have said of a recorded attempt, and when."),
    "export": ("supervisor.cli.export", "A recorded attempt as a folder that replays elsewhere."),
    "doctor": ("supervisor.cli.doctor", "What is in order here and what is not."),
    "config": ("supervisor.cli.config", "Check the configuration."),
    "setup": ("supervisor.cli.setup", "Install as a service."),
    "bench": ("supervisor.cli.bench", "Measure on this machine: the Conv2d of a job's interpreter."),
    "demo": ("supervisor.cli.demo", "Show it: a real training, hurt and resumed."),
    "agent-path": ("supervisor.cli.agent_path", "The directory to put on PYTHONPATH by hand."),
    "completion": ("supervisor.cli.completion", "Print the completion script for a shell."),
    "version": ("supervisor.cli.version", "The version."),
    "help": ("supervisor.cli.help", "Help for a command, or on exit-codes."),
}
"""Module and one line for the overview; the module exports `command`."""

FOREIGN = frozenset({"add", "avail", "clear", "fg", "maintail", "open", "pid", "remove", "reread", "shutdown"})
FOREIGN |= {"signal", "tail", "update", "quit", "exit"}
"""Commands of the Supervisor project's supervisorctl, which a user may have meant."""
ALLOW_COLLISION = "ROCM_SUPERVISOR_ALLOW_COLLISION"


class Lazy(click.Group):
    """A group that knows its commands by name and imports one when it is called."""

    def list_commands(self, _context: click.Context) -> list[str]:
        """Return the names in the order of the table."""
        return list(COMMANDS)

    def get_command(self, _context: click.Context, name: str) -> click.Command | None:
        """Import a command; None for a name that is none."""
        known = COMMANDS.get(name)
        if known is None:
            return None
        found = importlib.import_module(known[0]).command
        assert isinstance(found, click.Command)
        return found

    def resolve_command(
        self, context: click.Context, arguments: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command; for an unknown one say which was meant."""
        name = arguments[0]
        if name in COMMANDS or name.startswith("-"):
            return super().resolve_command(context, arguments)
        if name in FOREIGN:
            text = f"no command {name!r}: this is rocm-supervisor's command line, not that of supervisord.org"
            raise click.UsageError(text, context)
        import difflib  # noqa: PLC0415  # 7 ms that a command without a typo need not wait for

        near = difflib.get_close_matches(name, COMMANDS, n=1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise click.UsageError(f"no command {name!r}{hint}", context)

    def invoke(self, context: click.Context) -> object:
        """Run the command; with --json a wrong command line is an error object too."""
        try:
            return super().invoke(context)
        except click.UsageError as error:
            if context.params["as_json"] is not True:
                raise
            raise WrongUsageError(
                error.format_message(), error.ctx.command_path + " --help" if error.ctx else ""
            ) from error

    def format_commands(self, _context: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the overview from the table, so that --help imports nothing."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, line) for name, (_, line) in COMMANDS.items()])


@click.command(
    cls=Lazy,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Exit codes: 0 well, 1 failed, 2 usage, 3 a job is down, 4 no daemon, 5 refused (help exit-codes).",
)
@click.option("--config", type=click.Path(path_type=Path, readable=False), help="Configuration file.", metavar="FILE")
@click.option(
    "--socket", type=click.Path(path_type=Path, readable=False), help="The daemon's control socket.", metavar="PATH"
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON, errors too.")
@click.option("--color", type=click.Choice(["auto", "always", "never"]), default="auto", show_default=True)
@click.pass_context
def cli(context: click.Context, config: Path | None, socket: Path | None, color: str, *, as_json: bool) -> None:
    """See and steer the trainings that rocm-supervisor keeps alive."""
    app = context.obj if isinstance(context.obj, App) else App()
    app.config_given, app.socket_given, app.color = config, socket, color
    app.json = as_json
    context.obj = app


def collision() -> str | None:
    """Return what to say where the Supervisor project shares this environment, unless the user wants it so."""
    if os.environ.get(ALLOW_COLLISION) == "1":
        return None
    other = other_supervisor()
    if other is None:
        return None
    return (
        f"{other.name.removesuffix('.dist-info')} (supervisord.org) is installed in this environment and shares the "
        "package name and the command supervisorctl: install one of the two elsewhere (pipx, or a venv), "
        f"or set {ALLOW_COLLISION}=1"
    )


def main() -> None:
    """Run `supervisorctl`; ends the process with one of the codes in `exits.py`."""
    program = Path(sys.argv[0]).name
    found = collision()
    if found is not None:
        click.echo(f"rocm-supervisor: {found}", err=True)
        if program == "supervisorctl":
            sys.exit(exits.USAGE)  # the user may have meant the other one
    cli(prog_name="supervisorctl" if program.endswith(".py") else program)


if __name__ == "__main__":
    main()
