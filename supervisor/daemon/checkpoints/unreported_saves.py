"""Finds saves that no report names: what lies next to the recorded ones under names of another last number.

A disk that was full for hours takes no reports, while the training saves on and removes what was recorded before.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import replace
from itertools import islice
from pathlib import Path

from supervisor.children.files_apart import apart
from supervisor.core.checkpoints.checkpoint import Checkpoint, of_this_training
from supervisor.daemon.checkpoints.candidates import UNFINISHED, Search, fingerprint

FOLDERS_AT_MOST = 16
"""Of the newest recorded saves."""
ENTRIES_AT_MOST = 100_000
_LAST_NUMBER = re.compile(r"\d+(?=\D*$)")
"""Another number in a name may be that of another training, as in `run12_epoch5.pt`."""


def with_unreported(search: Search) -> Search | None:
    """Return the search over what no report names too; None where there is nothing of that kind."""
    series = _list_series(search)
    recorded = {saved.path for saved in search.known}
    found = ((path, fingerprint(Path(path))) for path in apart(list_alike, series) if path not in recorded)
    new = tuple(Checkpoint(path=path, fingerprint=now) for path, now in found if now is not None)
    return replace(search, known=(*search.known, *new)) if new else None


def _list_series(search: Search) -> dict[str, frozenset[str]]:
    """Return by folder the names of this training's recorded saves, with `#` in place of their last number."""
    ours = of_this_training((saved for saved in search.known if saved.source is None), search.began_unix_s)
    left_out = {folder for folder in (search.snapshots, search.replicas) if folder is not None}
    series: dict[str, frozenset[str]] = {}
    for saved in sorted(ours, key=lambda item: item.saved_unix_s, reverse=True):
        folder, name = os.path.split(saved.path)
        if folder not in left_out and (folder in series or len(series) < FOLDERS_AT_MOST):
            series[folder] = series.get(folder, frozenset()) | {_series_of(name)}
    return series


def list_alike(series: Mapping[str, frozenset[str]]) -> tuple[str, ...]:
    """Return what lies in each folder under a name of its series."""
    found: list[str] = []
    for folder, names in series.items():
        try:
            with os.scandir(folder) as entries:
                present = [entry.name for entry in islice(entries, ENTRIES_AT_MOST)]
        except OSError:
            continue
        alike = (name for name in present if _series_of(name) in names and not UNFINISHED.search(name))
        found += [str(Path(folder, name)) for name in alike]
    return tuple(found)


def _series_of(name: str) -> str:
    return _LAST_NUMBER.sub("#", name)
