"""`supervisorctl evidence INCIDENT`: what was taken of it, or all in one file to hand on; it takes nothing anew."""

from __future__ import annotations

import io
import json
import tarfile
from pathlib import Path
from typing import Any

import click

from supervisor.cli.app import App, CliError, json_option, pass_app
from supervisor.cli.words import size
from supervisor.control.client import quoted
from supervisor.core.harmless import one_line, sanitized
from supervisor.core.secrets import without_secrets

FILE_LIMIT_BYTES = 8 << 20
BUNDLE_LIMIT_BYTES = 64 << 20


@click.command("evidence")
@click.argument("incident")
@click.option(
    "--tar", "target", type=click.Path(path_type=Path), help="Write it all to FILE (.tar.gz).", metavar="FILE"
)
@json_option
@pass_app
def command(app: App, incident: str, target: Path | None) -> None:
    """List the evidence of INCIDENT (its name is in `history`), or write it to one FILE for a bug report.

    Secrets that can be told for some were removed when it was taken; read it before you hand it on all the same.
    """
    answer = app.get_or(f"/v1/incidents/{quoted(incident)}", lambda: _left(app, incident))
    folder = answer["incident"]["evidence"]
    if folder is None:
        raise CliError(f"no evidence of {one_line(incident)} was taken", "supervisorctl show tells why", "no_evidence")
    files = _files(Path(folder))
    if target is not None:
        _bundle(target, incident, answer, Path(folder), files)
        app.print(f"{target}: {len(files) + 1} files, {size(target.stat().st_size)}")
    elif app.json:
        found = [{"path": str(one), "size_bytes": one.stat().st_size} for one in files]
        app.print_json({"schema": 1, "incident": incident, "folder": folder, "files": found})
    else:
        app.print("\n".join(f"{size(one.stat().st_size):>8}  {one_line(str(one))}" for one in files))


def _files(folder: Path) -> list[Path]:
    """Return the regular files of a folder; what links elsewhere is not ours to hand on."""
    try:
        folder.stat()
    except OSError as error:
        remedy = "it was cleared away, or lies where only the daemon's user and root may read: try sudo"
        raise CliError(f"{folder}: {error.strerror}", remedy, "unreadable") from error
    return sorted(one for one in folder.rglob("*") if one.is_file() and not one.is_symlink())


def _bundle(target: Path, incident: str, answer: dict[str, Any], folder: Path, files: list[Path]) -> None:
    """Write the incident and its files; one that is there already is not overwritten, half a bundle is not left."""
    draft = target.with_name(f".{target.name}.part")
    story = json.dumps(sanitized(answer), indent=2, ensure_ascii=False).encode()
    try:
        if target.exists():
            raise CliError(f"{target} is there already", "name another file", "exists")
        with draft.open("wb") as raw, tarfile.open(fileobj=raw, mode="w:gz") as bundle:
            _add(bundle, f"{incident}/incident.json", without_secrets(story.decode()).encode())
            room = BUNDLE_LIMIT_BYTES - len(story)
            for one in files:
                content = _tail_of(one, min(FILE_LIMIT_BYTES, room))
                room -= len(content)
                _add(bundle, f"{incident}/{one.relative_to(folder)}", content)
        draft.replace(target)
    except OSError as error:
        raise CliError(f"{error.filename or target}: {error.strerror}", "name another file", "unwritable") from error
    finally:
        draft.unlink(missing_ok=True)


def _tail_of(path: Path, limit_bytes: int) -> bytes:
    """Return the end of a file: what came last is what tells."""
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - limit_bytes))
        return file.read(limit_bytes)


def _add(bundle: tarfile.TarFile, name: str, content: bytes) -> None:
    entry = tarfile.TarInfo(name.lstrip("/"))
    entry.size, entry.mode = len(content), 0o600
    bundle.addfile(entry, io.BytesIO(content))


def _left(app: App, incident: str) -> dict[str, Any]:
    from supervisor.cli import left  # noqa: PLC0415  # the database is for when nobody answers

    return left.incident(app, incident)
