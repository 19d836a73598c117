"""`supervisorctl checkpoints JOB`: the checkpoints of a job: epoch, step, verdict, and why each is kept."""

from __future__ import annotations

import posixpath
from typing import Any

import click

from supervisor.cli.app import App, json_option, pass_app
from supervisor.cli.formatting import ago, epoch, number, size
from supervisor.cli.name_completion import complete_job
from supervisor.cli.table import Cell, Pen, cut_middle
from supervisor.control.client import quoted
from supervisor.core.sanitize import one_line

HEAD = ("FILE", "EPOCH", "STEP", "SAVED", "SIZE", "KIND", "VERDICT", "KEPT BY", "WHY")
PRUNED = "pruned"
REPLACED = "replaced"
"""The training's own file as it was before it was written again, or moved aside."""
STYLES = {"proven": "green", "rejected": "red"}


@click.command("checkpoints")
@click.argument("job", shell_complete=complete_job)
@click.option("-n", "--limit", type=click.IntRange(1, 100_000), default=20, show_default=True, help="Rows, at most.")
@click.option("--all", "-a", "every", is_flag=True, help="Every checkpoint, pruned and replaced ones included.")
@json_option
@pass_app
def command(app: App, job: str, limit: int, *, every: bool) -> None:
    """List the kept checkpoints of JOB, the most trained first; with --json every checkpoint."""
    answer = app.get_recorded(f"/v1/jobs/{quoted(job)}/checkpoints")
    if app.json:
        app.print_json(answer)
    elif answer["checkpoints"]:
        app.print("\n".join(lines(answer["checkpoints"], app.now(), app.pen, limit=None if every else limit)))
    else:
        app.print(f"{one_line(job)} has saved no checkpoint yet")


def lines(checkpoints: list[dict[str, Any]], now: float, pen: Pen, limit: int | None) -> list[str]:
    """Return the table, above it the folder that all files share, below it the number of hidden rows."""
    why = _say_why_kept(checkpoints)
    kept = [entry for entry, by in zip(checkpoints, why, strict=True) if by not in {PRUNED, REPLACED}]
    shown = checkpoints if limit is None else kept[:limit]
    folder = _shared_folder([entry["path"] for entry in shown])
    by_entry = {id(entry): by for entry, by in zip(checkpoints, why, strict=True)}
    rows = [_checkpoint_row(entry, by_entry[id(entry)], now, folder) for entry in shown]
    in_short = one_line(folder) if pen.width is None else cut_middle(one_line(folder), pen.width - len("in :"))
    text = [f"in {in_short}:"] if folder else []
    text += [pen.table(HEAD, rows)] if rows else []
    hidden = [f"{len(kept) - len(shown)} more"] if len(kept) > len(shown) else []
    if limit is not None:
        hidden += [f"{why.count(by)} {by}" for by in (PRUNED, REPLACED) if by in why]
    return text + ([f"{' and '.join(hidden)}: --all shows them"] if hidden else [])


def _shared_folder(paths: list[str]) -> str:
    """Return the folder that all files share; empty if that is the root or one level below it."""
    if len(paths) < 2 or not all(posixpath.isabs(path) for path in paths):
        return ""
    folder = posixpath.commonpath([posixpath.dirname(path) for path in paths])
    return folder if folder.count("/") > 1 else ""


def _checkpoint_row(entry: dict[str, Any], kept_by: str, now: float, folder: str) -> list[Cell]:
    verdict = one_line(entry["verdict"] or "not verified")
    return [
        Cell(one_line(posixpath.relpath(entry["path"], folder) if folder else entry["path"]), "bold", path=True),
        Cell(number(epoch(entry["epoch"])), right=True),
        Cell(number(entry["step"]), right=True),
        Cell(ago(entry["saved_at"], now), right=True),
        Cell(size(entry["size_bytes"]), right=True),
        Cell(one_line(entry["kind"])),
        Cell(verdict, STYLES.get(verdict)),
        Cell(kept_by),
        Cell(one_line(entry["reason"] or "")),
    ]


def _say_why_kept(checkpoints: list[dict[str, Any]]) -> list[str]:
    """Return for each which retention rules keep a generation; the training's own file is not subject to them."""
    newest: dict[str, float] = {}
    for entry in checkpoints:
        path = entry["source"] or entry["path"]
        newest[path] = max(newest.get(path, 0.0), entry["saved_at"])
    return [_kept_by(entry, newest[entry["source"] or entry["path"]]) for entry in checkpoints]


def _kept_by(entry: dict[str, Any], newest_unix_s: float) -> str:
    """`newest_unix_s` is when the newest known content of its file was saved."""
    if entry["source"] is None:
        return "training" if entry["saved_at"] >= newest_unix_s else REPLACED
    return PRUNED if entry["kept_by"] == "" else one_line(entry["kept_by"] or "")
