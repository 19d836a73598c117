"""Completes what a killed ultralytics training left in its folder: rows of epochs that are redone, a damaged best.pt.

ultralytics writes last.pt, best.pt and results.csv in place, and each by itself. What it has written of the epoch that
a resume begins with, or has half written, is no result of the training that goes on.
"""

from __future__ import annotations

import hashlib
import os
from typing import Any, Dict, Optional

from . import claim
from .fence import fenced
from .snapshots import files
from .snapshots.keeper import folder
from .snapshots.ultralytics_epoch import cut

DAMAGED = ".damaged"
PICKLE = b"\x80"
UNKNOWN = object()


def complete(torch: Any, trainer: Any, ckpt: Dict[str, Any], source: str) -> None:
    """Have the folder hold what `ckpt`, in `source`, had come to; the trainer goes on from it at `start_epoch`."""
    if claim.rank != 0:
        return
    cut_rows(str(trainer.csv), trainer.start_epoch)
    last, best = str(trainer.last), os.path.realpath(str(trainer.best))
    is_theirs = files.OURS not in ckpt and ckpt.get("optimizer") is not None
    if is_theirs and is_damaged(last):
        copy(source, last)
    if is_theirs and _is_best(ckpt) and _is_behind(torch, best, ckpt):
        copy(source, best)
    elif is_damaged(best):
        _replace_damaged(trainer, best)


def cut_rows(csv: str, made: int) -> None:
    """Remove what follows the newest row of epoch `made`, counted from 1, and a row that was not written to its end.

    Rows of an earlier training in the same folder come before it.
    """
    try:
        with open(csv, "rb") as file:
            data = file.read()
    except FileNotFoundError:
        return
    size = position = 0
    for line in data[: data.rfind(b"\n") + 1].splitlines(keepends=True):
        position += len(line)
        if _epoch_of(line) == made:
            size = position
    if (size or position) < len(data):
        cut(csv, size or position)


def _epoch_of(row: bytes) -> Optional[float]:
    try:
        return float(row.split(b",", 1)[0])
    except ValueError:
        return None


def is_damaged(path: str) -> bool:
    """Whether a checkpoint is there and is not complete; a pickle, as some other program saves, is not known to be."""
    try:
        files.verify(path)
    except ValueError:
        with open(path, "rb") as file:
            return file.read(1) != PICKLE
    except OSError:
        return False
    return False


def _fitness_of(ckpt: Dict[str, Any]) -> Any:
    return (ckpt.get("train_metrics") or {}).get("fitness", UNKNOWN)


def _is_best(ckpt: Dict[str, Any]) -> bool:
    """Whether best.pt is to be this save: no epoch before it did better."""
    return bool(_fitness_of(ckpt) == ckpt.get("best_fitness"))


def _is_behind(torch: Any, best: str, ckpt: Dict[str, Any]) -> bool:
    """Whether best.pt is missing, damaged or of an epoch that did worse; without a validation, of an earlier epoch."""
    if not os.path.exists(best) or is_damaged(best):
        return True
    found = files.load(torch, best)
    had, now = _fitness_of(found), _fitness_of(ckpt)
    if had is None and now is None:
        return bool(-1 < found.get("epoch", -1) < ckpt["epoch"])
    return had is None or (had is not UNKNOWN and now is not None and bool(had < now))


def _replace_damaged(trainer: Any, best: str) -> None:
    """Put the copy of best.pt back; where there is none the best of the epochs that are still to come is saved."""
    kept = _copy_of(best)
    if kept is not None and os.path.exists(kept) and not is_damaged(kept):
        copy(kept, best)
    else:
        trainer.best_fitness = None


def copy(source: str, target: str) -> None:
    """Copy a file into the training's folder, where the next resume writes over what a killed one left half written."""
    with open(source, "rb") as file:
        files.copy(file, target + files.PART, target)


def _copy_of(best: str) -> Optional[str]:
    place = folder()
    name = hashlib.sha256(os.fsencode(os.path.realpath(best))).hexdigest()[:16] + ".best"
    return None if place is None else os.path.join(place, name)


@fenced
def keep_best(trainer: Any) -> None:
    """Copy best.pt before its optimizer is removed from it in place: no other file has the weights of that epoch.

    One that is damaged, with no epoch left to save another, is moved: each final evaluation would fail with it.
    """
    best = os.path.realpath(str(trainer.best))
    kept = _copy_of(best)
    if claim.rank == 0 and is_damaged(best):
        os.replace(best, best + DAMAGED)
    if claim.rank != 0 or kept is None or not os.path.exists(best):
        return
    try:
        files.check_room(os.path.dirname(kept), os.stat(best).st_size)
        with open(best, "rb") as file:
            # A snapshot that is written meanwhile removes what other processes left half written there.
            files.copy(file, files.part_of(kept), kept)
    except OSError:  # it is only for the case that the training is killed within the next moment
        files.remove(kept)


@fenced
def forget_best(trainer: Any) -> None:
    """Remove the copy: the training has come to its end, or begins."""
    kept = _copy_of(str(trainer.best))
    if claim.rank == 0 and kept is not None:
        files.remove(kept)
