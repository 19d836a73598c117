"""`supervisorctl submit`: a training on several nodes as a job of Slurm, or as a line of one's own batch script."""

from __future__ import annotations

import os
import re
from pathlib import Path

import click

from supervisor.cli.app import App, pass_app
from supervisor.cli.errors import CliError, WrongUsageError

COMMAND_LIMIT_S = 60.0
HELP = "supervisorctl submit --help"
_JOB_ID = re.compile(r"\d+")


def default_folder(training: str) -> Path:
    """Return where a training's folder is unless it is named: in the home, which a cluster's nodes share."""
    root = os.environ.get("XDG_STATE_HOME") or str(Path.home() / ".local" / "state")
    return Path(root) / "rocm-supervisor" / "trainings" / training


@click.command("submit", context_settings={"ignore_unknown_options": True})
@click.option("--nodes", type=click.IntRange(1, 16_384), required=True, help="Nodes that train.")
@click.option("--spares", type=click.IntRange(0, 1024), default=0, help="Further nodes, which replace those that fail.")
@click.option("--name", "training", default="training", show_default=True, help="Letters, digits, - and _.")
@click.option(
    "--folder",
    type=click.Path(path_type=Path, readable=False),
    help="Folder of the training, on a file system that all nodes share (default: in the home).",
)
@click.option(
    "--local-dir",
    metavar="FOLDER",
    help="On each node's own disk, for its database (default: in $TMPDIR or /var/tmp); copied to --folder at the end.",
)
@click.option("--settings", type=click.Path(path_type=Path), help="A configuration with [jobs.NAME]: rules, alerts.")
@click.option("--sbatch", "options", multiple=True, metavar="OPTION", help="A further option of sbatch; repeatable.")
@click.option("--dry-run", is_flag=True, help="Print the batch script; nothing is submitted or written.")
@click.argument("words", nargs=-1, required=True, type=click.UNPROCESSED)
@pass_app
def command(  # noqa: PLR0913, PLR0917 - one argument each option
    app: App,
    nodes: int,
    spares: int,
    training: str,
    folder: Path | None,
    local_dir: str | None,
    settings: Path | None,
    options: tuple[str, ...],
    words: tuple[str, ...],
    *,
    dry_run: bool,
) -> None:
    """Submit WORDS (torchrun ... train.py) to Slurm, supervised on all nodes as one training.

    Within a batch script of your own, `supervisorctl submit --nodes N -- torchrun ...` is the one line that it needs.
    """
    from supervisor.cluster.batch import Submission, write_body, write_script  # noqa: PLC0415 - as in every command

    _check_asked(training, words)
    place = (folder or default_folder(training)).absolute()
    asked = Submission(
        training=training,
        nodes=nodes,
        spares=spares,
        command=words,
        folder=place,
        local_dir=local_dir,
        config=None if settings is None else settings.absolute(),
        options=options,
        cwd=Path.cwd(),
    )
    try:
        text = write_script(asked)
    except ValueError as error:
        raise WrongUsageError(str(error), HELP) from error
    if dry_run:
        app.print(text)
        return
    _make_folder(place)
    if os.environ.get("SLURM_JOB_ID"):
        os.execvp("bash", ["bash", "-c", write_body(asked)])  # noqa: S606, S607 - the script that --dry-run shows
    job = _submit_script(place, text)
    app.print(f"job {job}: training {training} on {nodes} nodes, {spares} spares")
    app.print(f"  supervisorctl training status {training if folder is None else place}")


def _check_asked(training: str, words: tuple[str, ...]) -> None:
    """Raise WrongUsageError for a name that no training can have, and for options of the launcher that are not kept."""
    from supervisor.cluster.rendezvous import find_overriding  # noqa: PLC0415 - as above
    from supervisor.core.fleet.epoch import check_job  # noqa: PLC0415 - as above

    try:
        check_job(training)
    except ValueError as error:
        raise WrongUsageError(str(error), HELP) from error
    overriding = find_overriding(words)
    if overriding:
        raise WrongUsageError(f"omit {', '.join(overriding)}: the leader of the training decides that", HELP)


def _make_folder(place: Path) -> None:
    from supervisor.cluster.secret import make_secret  # noqa: PLC0415 - as above

    try:
        (place / "nodes").mkdir(mode=0o700, parents=True, exist_ok=True)
        (place / "leader" / "stop").unlink(missing_ok=True)
        if not (place / "secret").exists():
            make_secret(place / "secret")
    except OSError as error:
        text = f"{error.filename}: {error.strerror}"
        raise CliError(text, "--folder names a folder that all nodes share and that you may write") from error


def _submit_script(place: Path, text: str) -> str:
    """Write the batch script and the number of its job into the training's folder; return the number."""
    from supervisor.programs import run  # noqa: PLC0415 - as above

    script = place / "batch.sh"
    script.write_text(text)
    try:
        ran = run(("sbatch", "--parsable", str(script)), COMMAND_LIMIT_S, together=True)
    except OSError as error:
        remedy = "run it where Slurm's commands are, or start `rocm-supervisord --role node` on each node by hand"
        raise CliError(f"sbatch: {error.strerror}", remedy) from error
    printed = ran.stdout.decode(errors="replace").strip()
    found = _JOB_ID.match(printed.splitlines()[-1]) if printed and ran.status == 0 else None
    if found is None:
        answer = "no answer" if ran.status is None else printed
        raise CliError(f"sbatch {script}: {answer}", "the script is kept; correct it, or the options of --sbatch")
    (place / "job").write_text(f"{found[0]}\n")
    return found[0]
