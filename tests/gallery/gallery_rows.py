"""The rows of rows.toml, and where their scripts come from: a clone at the pinned commit, or the caller's folder."""

from __future__ import annotations

import shutil
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROWS = Path(__file__).with_name("rows.toml")


@dataclass(frozen=True)
class Source:
    """A public repository at one commit, and the folders of it that are needed."""

    repository: str
    commit: str
    licence: str
    paths: tuple[str, ...]

    @property
    def folder(self) -> str:
        """Owner and name, which is where it lies below the folder of all sources."""
        return "/".join(self.repository.split("/")[-2:])


@dataclass(frozen=True)
class Row:
    """One script with its settings."""

    name: str
    title: str
    command: tuple[str, ...]
    source: Source | None = None
    packages: tuple[str, ...] = ()
    cwd: str = "."
    env: dict[str, str] = field(default_factory=dict)
    data: dict[str, str] = field(default_factory=dict)
    checkpoints: tuple[str, ...] = ()
    resume: tuple[str, ...] = ()
    resume_to: str | None = None
    ranks: int = 1
    gpus: int = 0
    """How many GPUs the script asks for; it runs on no CPU where it asks for any."""
    steps: str = "optimizer"
    """What is counted and hurt from outside as a step: see the injections; `unseen` where none is."""


def load_rows(path: Path = ROWS) -> dict[str, Row]:
    """Return every row by name."""
    table = tomllib.loads(path.read_text())
    sources = {name: Source(**{**keys, "paths": tuple(keys["paths"])}) for name, keys in table["sources"].items()}
    return {keys["name"]: _row(keys, sources) for keys in table["rows"]}


def _row(keys: dict[str, Any], sources: dict[str, Source]) -> Row:
    lists = {name: tuple(value) for name, value in keys.items() if isinstance(value, list)}
    source = sources[keys["source"]] if "source" in keys else None
    return Row(**{**keys, **lists, "source": source})


class MissingSourceError(Exception):
    """A script is not there and could not be cloned."""


def obtain(source: Source, sources: Path) -> Path:
    """Return the folder of a source below `sources`, cloned at its commit where it is not there yet."""
    folder = sources / source.folder
    if all((folder / path).exists() for path in source.paths):
        return folder
    part = folder.with_name(folder.name + ".part")
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir(parents=True)
    sparse = [] if "." in source.paths else [["sparse-checkout", "set", "--no-cone", *source.paths]]
    fetch = ["fetch", "--quiet", "--depth", "1", "--filter=blob:none", source.repository, source.commit]
    for words in (["init", "--quiet"], *sparse, fetch, ["checkout", "--quiet", source.commit]):
        done = subprocess.run(["git", *words], cwd=part, capture_output=True, text=True, check=False)
        if done.returncode:
            raise MissingSourceError(f"{source.repository} at {source.commit}: git {words[0]}: {done.stderr.strip()}")
    shutil.rmtree(folder, ignore_errors=True)
    part.rename(folder)
    return folder
