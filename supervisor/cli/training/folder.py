"""What is read of a training's folder, by another process: it has nothing but Python and this product."""

from __future__ import annotations

from pathlib import Path

FILE_BYTES_MAX = 64 << 20
TAIL_BYTES = 65536


def is_folder(path: Path) -> bool:
    """Whether a folder is there. Raises OSError where that cannot be seen."""
    try:
        return path.stat() is not None and path.is_dir()
    except (FileNotFoundError, NotADirectoryError):
        return False


def read_file(path: Path) -> bytes | None:
    """Return the newest part of a file; None where there is none."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, file.seek(0, 2) - FILE_BYTES_MAX))
            return file.read(FILE_BYTES_MAX)
    except FileNotFoundError:
        return None


def list_evidence(folder: Path, incident: str) -> list[str]:
    """Return the folders with evidence of an incident on all nodes."""
    return sorted(map(str, (folder / "nodes").glob(f"*/jobs/*/*/evidence/{incident}")))


def read_outputs(folder: Path, node: str | None) -> list[tuple[str, str, str]]:
    """Return (node, path, end of its output) of the newest launch, of one node or of all."""
    states = sorted(path for path in (folder / "nodes").glob("*") if node is None or path.name == node)
    found = []
    for state in states:
        for path in sorted(state.glob("jobs/*/current/run/output.log")):
            with path.open("rb") as file:
                file.seek(max(0, file.seek(0, 2) - TAIL_BYTES))
                found.append((state.name, str(path), file.read(TAIL_BYTES).decode("utf-8", "replace").rstrip("\n")))
    return found


def touch(path: Path) -> None:
    """Make an empty file."""
    path.touch()
