"""supervisorctl(1) from the command tree, and rocm-supervisord(8): each command, option and exit code."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator

import click

from supervisor import __version__
from supervisor.cli import exit_codes
from supervisor.cli.manual import roff

SOURCE = f"rocm-supervisor {__version__}"
NAME = "supervisorctl, rocm\\-supervisorctl \\- monitor and control supervised trainings"
FILES = (
    ("/etc/rocm-supervisor/config.toml", "The configuration; conf.d/*.toml next to it belong to it."),
    ("~/.config/rocm-supervisor/config.toml", "The same for the daemon of one user."),
    ("/run/rocm-supervisor/control.sock", "Where the daemon answers; for members of the group rocm-supervisor."),
    ("/var/lib/rocm-supervisor", "The record and the attempts of each job."),
)
ENVIRONMENT = (
    ("ROCM_SUPERVISOR_CONFIG", "The configuration file, in place of the ones above."),
    ("ROCM_SUPERVISOR_SOCKET", "The control socket, in place of the one that the configuration names."),
)
SEE_ALSO = ("rocm-supervisord(8)", "rocm-supervisor.toml(5)", "systemctl(1)")
_EXIT_CODE = re.compile(r"(?m)^ +([0-9]+)  (.+)$")
_DAEMON = """\
.SH NAME
rocm\\-supervisord \\- keeps a training running on hardware that fails
.SH SYNOPSIS
.B rocm\\-supervisord
.BI \\-\\-config\\~ FILE
.br
.B rocm\\-supervisord
.B \\-\\-version
.SH DESCRIPTION
The daemon starts the jobs of its configuration, monitors their steps,
the GPUs, the kernel log and the host, and stops and resumes a training
when a rule raises a critical flag.
A training outlives the daemon: under systemd each attempt is a unit of its own,
.IR rocm\\-run@ JOB .service .
A restart of the daemon finds it again.
.PP
SIGTERM ends the daemon; its trainings are saved and ended, unless
systemd restarts the daemon.
SIGHUP reads the configuration again.
.SH OPTIONS
.TP
.BI \\-\\-config\\~ FILE
The configuration, see
.BR rocm\\-supervisor.toml (5).
.TP
.B \\-\\-version
Print the version.
.SH EXIT STATUS
.TP
.B 0
Stopped.
.TP
.B 69
The surroundings do not allow a start: a database, state directory or
socket that cannot be used.
.TP
.B 78
The configuration is wrong; each problem was printed.
.SH SEE ALSO
.BR supervisorctl (1),
.BR rocm\\-supervisor.toml (5),
.BR systemd.service (5)
"""


def command_page(group: click.Group, at_unix_s: int) -> str:
    """Return supervisorctl(1); `at_unix_s` is the date of the page."""
    context = click.Context(group, info_name="supervisorctl", **group.context_settings)
    lines = [roff.title("supervisorctl", 1, at_unix_s, SOURCE), ".SH NAME", NAME]
    lines += [".SH SYNOPSIS", f"{roff.bold('supervisorctl')} [options] command [arguments]"]
    lines += [".SH DESCRIPTION", *roff.paragraphs(group.help or "")]
    lines += [".SH OPTIONS", *_list_options(group, context)]
    lines += [".SH COMMANDS"]
    for name, command, nested in walk(group, context):
        lines += _describe_command(name, command, nested)
    lines += [".SH EXIT STATUS"]
    for code, meaning in _EXIT_CODE.findall(exit_codes.TEXT):
        lines += roff.tagged(roff.bold(code), roff.flow(meaning))
    for heading, items in ((".SH ENVIRONMENT", ENVIRONMENT), (".SH FILES", FILES)):
        lines.append(heading)
        for tag, text in items:
            lines += roff.tagged(roff.bold(tag), roff.flow(text))
    lines += [".SH SEE ALSO", ", ".join(roff.escape(page) for page in SEE_ALSO)]
    return roff.page(lines)


def daemon_page(at_unix_s: int) -> str:
    """Return rocm-supervisord(8)."""
    return f"{roff.title('rocm-supervisord', 8, at_unix_s, SOURCE)}\n{_DAEMON}"


def walk(group: click.Group, context: click.Context) -> Iterator[tuple[str, click.Command, click.Context]]:
    """Yield every command that is not hidden, those of a group behind it: its words, itself, its context."""
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        if command is None or command.hidden:
            continue
        nested = click.Context(command, info_name=name, parent=context)
        words = nested.command_path.split(" ", 1)[1]
        yield words, command, nested
        if isinstance(command, click.Group):
            yield from walk(command, nested)


def _describe_command(name: str, command: click.Command, context: click.Context) -> Iterator[str]:
    usage = " ".join(command.collect_usage_pieces(context))
    yield f".SS {roff.escape(name)}"
    yield from roff.flow(f"supervisorctl {name} {usage}")
    yield ".PP"
    yield from roff.paragraphs(inspect.cleandoc(command.help or command.get_short_help_str(200)))
    yield from _list_options(command, context)
    if command.epilog:
        yield ".PP"
        yield from roff.paragraphs(inspect.cleandoc(command.epilog))


def _list_options(command: click.Command, context: click.Context) -> Iterator[str]:
    for parameter in command.params if context.parent else command.get_params(context):
        record = parameter.get_help_record(context)
        if record is not None and (record[1] or isinstance(parameter, click.Option)):
            words, text = record
            yield from roff.tagged(roff.bold(words), roff.flow(text))
