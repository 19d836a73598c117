"""Entry point of `supervisorctl`: the table of commands, each imported when it is used, and the global options."""

from __future__ import annotations

import atexit
import gc
import importlib
import os
import sys
from pathlib import Path

import click

from supervisor import __version__
from supervisor.cli import exit_codes
from supervisor.cli.app import App, UncheckedPath
from supervisor.cli.errors import WrongUsageError, suggest_nearest
from supervisor.cli.paths import other_supervisor
from supervisor.cli.unprinted import explaining_unprinted

COMMANDS: dict[str, tuple[str, str]] = {
    "status": ("supervisor.cli.status", "The state of every job and of the GPUs."),
    "top": ("supervisor.cli.top.command", "Trainings, GPUs, the newest incident, loss and output, live."),
    "gpus": ("supervisor.cli.gpus.command", "Every GPU: use, memory, temperatures, power, errors; live with --watch."),
    "history": ("supervisor.cli.history", "Incidents: what was detected, what was done, and what it cost."),
    "show": ("supervisor.cli.show", "One incident with its timeline and evidence."),
    "evidence": ("supervisor.cli.evidence.command", "List the evidence of an incident, or write it into one file."),
    "triage": ("supervisor.cli.triage", "Replay a bad step: did data, numerics or hardware cause it?"),
    "tune": ("supervisor.cli.tune", "Try what can make a living training faster, and keep what is proven."),
    "estimate": ("supervisor.cli.estimate", "The GPU memory that a job needs, and the largest micro-batch that fits."),
    "start": ("supervisor.cli.lifecycle.start", "Start a job from its newest proven checkpoint."),
    "stop": ("supervisor.cli.lifecycle.stop", "Save a checkpoint and stop a job; it stays stopped."),
    "restart": ("supervisor.cli.lifecycle.restart", "Save a checkpoint, stop a job, and start it from there."),
    "logs": ("supervisor.cli.logs", "The output of a job."),
    "checkpoints": ("supervisor.cli.checkpoints", "The checkpoints of a job and their verdicts."),
    "account": ("supervisor.cli.account", "How a job spent its time, and what each fault cost."),
    "du": ("supervisor.cli.du", "Disk use of each job, and of the record."),
    "forget": ("supervisor.cli.forget", "Remove the record and files of a job that is no longer configured."),
    "remedies": ("supervisor.cli.remedies", "Remedies in force, their trials, and what was learned."),
    "alerts": (
        "supervisor.cli.alerts",
        "Alert receivers and the newest alerts; `alerts test` sends one, `alerts mute` holds them.",
    ),
    "metrics": ("supervisor.cli.metrics", "Metrics for Prometheus; with --rules its alerting rules."),
    "web": ("supervisor.cli.web", "Show trainings, charts and incidents in a browser; read-only."),
    "fleet": ("supervisor.cli.fleet.command", "Copy this record to a database that several machines share; its nodes."),
    "reload": ("supervisor.cli.reload", "Reload the daemon's configuration."),
    "explain": (
        "supervisor.cli.explain.command",
        "Explain a kernel log, a training's output or a saved rocm-smi output.",
    ),
    "replay": ("supervisor.cli.replay.command", "Run the rules over a recorded attempt and print their flags."),
    "export": (
        "supervisor.cli.replay.export",
        "Copy a recorded attempt into a folder that replays elsewhere, or its steps to CSV, Parquet, TensorBoard ...",
    ),
    "doctor": ("supervisor.cli.doctor.command", "Check this machine, its configuration and the daemon."),
    "config": ("supervisor.cli.config", "Check the configuration."),
    "setup": ("supervisor.cli.setup.command", "Install as a systemd service."),
    "bench": (
        "supervisor.cli.bench.command",
        "Benchmarks in a job's interpreter, and of a job's loader and micro-batches.",
    ),
    "submit": ("supervisor.cli.submit", "Run a training on several nodes under Slurm."),
    "training": ("supervisor.cli.training.command", "A training on several nodes: state, incidents, output, stop."),
    "simulate": ("supervisor.cli.simulate", "What faults would cost a training on many nodes."),
    "demo": ("supervisor.cli.demo", "Run a real training on the CPU, break it three times, resume it."),
    "agent-path": ("supervisor.cli.agent_path", "Print the directory to put on PYTHONPATH by hand."),
    "completion": ("supervisor.cli.completion", "Print the completion script for a shell."),
    "version": ("supervisor.cli.version", "Print the version."),
    "help": ("supervisor.cli.help", "Show help for a command or a topic."),
}
"""Module and one line for the overview; the module exports `command`."""

OF_FLEET = ("status", "history", "show", "account")
"""Commands that --fleet answers from the records of all nodes."""

FOREIGN = frozenset({"add", "avail", "clear", "fg", "maintail", "open", "pid", "remove", "reread", "shutdown"})
FOREIGN |= {"signal", "tail", "update", "quit", "exit"}
"""Commands of the supervisorctl of the Supervisor project (supervisord.org)."""
ALLOW_COLLISION = "ROCM_SUPERVISOR_ALLOW_COLLISION"


class LazyGroup(click.Group):
    """A group that imports a command when it is called."""

    def list_commands(self, _context: click.Context) -> list[str]:
        """Return the names in the order of the table."""
        return list(COMMANDS)

    def get_command(self, _context: click.Context, name: str) -> click.Command | None:
        """Import a command and return it; None for an unknown name."""
        known = COMMANDS.get(name)
        if known is None:
            return None
        found = importlib.import_module(known[0]).command
        assert isinstance(found, click.Command)
        return found

    def resolve_command(
        self, context: click.Context, arguments: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command; for an unknown name suggest the nearest known one."""
        name = arguments[0]
        if name in COMMANDS or name.startswith("-"):
            return super().resolve_command(context, arguments)
        if name in FOREIGN:
            text = f"no command {name!r}: this is rocm-supervisor's command line, not that of supervisord.org"
            raise click.UsageError(text, context)
        raise click.UsageError(f"no command {name!r}{suggest_nearest(name, COMMANDS)}", context)

    def invoke(self, context: click.Context) -> object:
        """Run the command; with --json a usage error is printed as an error object."""
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
    cls=LazyGroup,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Exit codes: 0 ok, 1 failed, 2 usage, 3 a job is down, 4 no daemon, 5 refused (help exit-codes).",
)
@click.option("--config", type=UncheckedPath(), help="Configuration file.", metavar="FILE")
@click.option("--socket", type=UncheckedPath(), help="The daemon's control socket.", metavar="PATH")
@click.option("--json", "as_json", is_flag=True, help="Print JSON, errors included.")
@click.option("--fleet", is_flag=True, help="Read the fleet's database: status, history, show, account.")
@click.option("--color", type=click.Choice(["auto", "always", "never"]), default="auto", show_default=True)
@click.version_option(__version__, message="rocm-supervisor %(version)s", help="Print the version.")
@click.pass_context
def cli(  # noqa: PLR0913 - one argument each option
    context: click.Context, config: Path | None, socket: Path | None, color: str, *, as_json: bool, fleet: bool
) -> None:
    """Monitor and control the trainings that rocm-supervisor supervises."""
    if fleet and context.invoked_subcommand not in OF_FLEET:
        raise WrongUsageError(
            f"{context.invoked_subcommand} is about one machine; --fleet is for {', '.join(OF_FLEET)}",
            "omit --fleet, on that machine",
        )
    app = context.obj if isinstance(context.obj, App) else App()
    app.config_given, app.socket_given, app.color = config, socket, color
    app.json = as_json
    app.fleet = fleet
    context.obj = app


def describe_collision() -> str | None:
    """Return an error message if the Supervisor project is installed in this environment; None if that is allowed."""
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
    """Run `supervisorctl`; ends the process with one of the codes in `exit_codes.py`."""
    atexit.register(gc.freeze)  # else an interpreter that ends passes all that it imported in search of garbage
    program = Path(sys.argv[0]).name
    message = describe_collision()
    if message is not None:
        click.echo(f"rocm-supervisor: {message}", err=True)
        if program == "supervisorctl":
            sys.exit(exit_codes.USAGE)  # the user may have meant the other program
    with explaining_unprinted(sys.argv):
        cli(prog_name="supervisorctl" if program.endswith(".py") else program)


if __name__ == "__main__":
    main()
