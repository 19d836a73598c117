"""`supervisorctl evidence INCIDENT`: list the collected evidence, or write it into one file."""

from __future__ import annotations

import io
import json
import tarfile
from pathlib import Path
from typing import Any

import click

from supervisor.cli.app import App, json_option, pass_app
from supervisor.cli.errors import CliError
from supervisor.cli.evidence.files import Evidence
from supervisor.cli.formatting import size
from supervisor.cli.name_completion import complete_incident
from supervisor.cli.unneeded_root import refuse_root
from supervisor.control.client import quoted
from supervisor.core.sanitize import one_line, sanitized, without_secrets

FILE_LIMIT_BYTES = 8 << 20
"""The most that the daemon returns of one file (control/evidence.py)."""
BUNDLE_LIMIT_BYTES = 64 << 20


@click.command("evidence")
@click.argument("incident", shell_complete=complete_incident)
@click.option(
    "--tar", "target", type=click.Path(path_type=Path), help="Write everything to FILE (.tar.gz).", metavar="FILE"
)
@json_option
@pass_app
def command(app: App, incident: str, target: Path | None) -> None:
    """List the evidence of INCIDENT (its name is in `history`), or write it to one FILE for a bug report.

    Recognized secrets were removed when it was collected; review it before you share it.
    """
    refuse_root(app, f"evidence {incident}")
    answer = app.get_recorded(f"/v1/incidents/{quoted(incident)}")
    folder = answer["incident"]["evidence"]
    if folder is None:
        raise CliError(f"no evidence of {one_line(incident)} was collected", "see supervisorctl show", "no_evidence")
    evidence = Evidence(app=app, incident=incident, folder=folder)
    files = evidence.files()
    if target is not None:
        _write_bundle(target, incident, answer, evidence, [entry["name"] for entry in files])
        app.print(f"{target}: {len(files) + 1} files, {size(target.stat().st_size)}")
    elif app.json:
        found = [{"path": f"{folder}/{entry['name']}", "size_bytes": entry["size_bytes"]} for entry in files]
        app.print_json({"schema": 1, "incident": incident, "folder": folder, "files": found})
    else:
        app.print(
            "\n".join(f"{size(entry['size_bytes']):>8}  {one_line(folder + '/' + entry['name'])}" for entry in files)
        )


def _write_bundle(target: Path, incident: str, answer: dict[str, Any], evidence: Evidence, files: list[str]) -> None:
    """Write the incident and its files; an existing file is not overwritten, an incomplete one is removed."""
    draft = target.with_name(f".{target.name}.part")
    story = json.dumps(sanitized(answer), indent=2, ensure_ascii=False).encode()
    try:
        if target.exists():
            raise CliError(f"{target} already exists", "give another file", "exists")
        with draft.open("wb") as raw, tarfile.open(fileobj=raw, mode="w:gz") as bundle:
            _add_file(bundle, f"{incident}/incident.json", without_secrets(story.decode()).encode())
            room = BUNDLE_LIMIT_BYTES - len(story)
            for name in files:
                content = evidence.read(name, min(FILE_LIMIT_BYTES, room))
                room -= len(content)
                _add_file(bundle, f"{incident}/{name}", content)
        draft.replace(target)
    except OSError as error:
        raise CliError(f"{error.filename or target}: {error.strerror}", "give another file", "unwritable") from error
    finally:
        draft.unlink(missing_ok=True)


def _add_file(bundle: tarfile.TarFile, name: str, content: bytes) -> None:
    entry = tarfile.TarInfo(name.lstrip("/"))
    entry.size, entry.mode = len(content), 0o600
    bundle.addfile(entry, io.BytesIO(content))
