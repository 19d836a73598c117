"""A save in several files: a program that is given one of them reads the others from next to it."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from itertools import islice
from pathlib import Path

from supervisor.children.files_apart import apart
from supervisor.core.checkpoints.checkpoint import Checkpoint, ResumePoint, list_numbers, older
from supervisor.core.checkpoints.damaged import is_damaged
from supervisor.daemon.checkpoints.candidates import Prove, Search, candidates, find_among, fingerprint

STATE_SUFFIXES = frozenset(
    [".pt", ".pth", ".ckpt", ".bin", ".tar", ".state", ".safetensors", ".pkl", ".pickle", ".zip", ".npz", ".npy"]
)
"""Of files that hold state of a training: a replay buffer in `sac_replay_buffer_500_steps.pkl` is a part of
`sac_500_steps.zip`, while a picture or a log of the same number is none."""
FACTS_SUFFIXES = frozenset([".yaml", ".yml", ".json", ".toml"])
"""Of what a program writes about a save under the save's own name, and goes on from: its epoch in `0.yaml`, next to
`0.pt`. Without that it would begin to count again."""
SAVES_ALIKE = 2
"""Saves that show which files belong to each of a series."""
_DIGITS = re.compile(r"\d+")
LOOKED_AT = 5000
"""Entries of a folder that are looked at for the other files of a save."""


def misses_file_next_to(generations: Path, captured: Iterable[Checkpoint], message: str) -> bool:
    """Whether an exception names a file in a generation's folder that is none of those captured: `config.json`.

    So it is with one of the folder above, where a program keeps its settings that saves into `weights/`: `opt.yaml`.
    """
    own = {Path(checkpoint.path).name for checkpoint in captured}
    named = re.findall(re.escape(f"{generations}/") + r"(?:\d+/)?([^/'\"\s]+)", message)
    return any(name not in own and not name.isdecimal() for name in named)


def hand_over_in_place(checkpoint: Checkpoint, *, needs_others: bool = False) -> Checkpoint:
    """Return the training's own file in place of a generation of it, where other files of the same save lie next to it.

    A generation holds the one file that a pattern names. A program that reads its optimizer and its averages from next
    to its model may go on without them where they are not there. The file must still be what was captured and proven.
    With `needs_others` the program is known to read others from there, whatever their names.
    """
    source, number = checkpoint.source, checkpoint.number
    if source is None or checkpoint.kind != "checkpoint":
        return checkpoint
    own = _find_own_file(checkpoint, source)
    if own is None or not checkpoint.is_of(own):
        return checkpoint
    has_part = _has_facts if number is None else partial(_has_another_part, by_all=False)
    return own if needs_others or apart(has_part, source) else checkpoint


def find_untorn(
    search: Search, prove: Prove, report: Callable[[Checkpoint], None], *, needs_others: bool = False
) -> ResumePoint:
    """Return where to resume, as `find` does, and not at a save of which a part was written again since.

    The generation of that part would be read together with the others as they are now: weights that were NaN at the
    next save of the same number, or of another step. Nor at one of which another part is found damaged or missing, as
    where a kill cut it short. A program that `needs_others` is given what still lies in its place. Where no such save
    is left, what `find` returns is taken.
    """
    look = _Looks(search, prove, report)
    first = look(search)
    point = _pass_over(search, first, look, needs_others=needs_others)
    if point is None and needs_others and search.older_than is not None:
        # It starts from nothing else, and what it resumed from last is no worse than no start.
        newest = replace(search, older_than=None)
        point = _pass_over(newest, look(newest), look, needs_others=needs_others)
    return first if point is None else point


class _Looks:
    """Searches among the same candidates one after the other; none is proven twice."""

    def __init__(self, search: Search, prove: Prove, report: Callable[[Checkpoint], None]) -> None:
        self._found = candidates(search)
        self._prove = prove
        self._report = report

    def __call__(self, search: Search) -> ResumePoint:
        """Return what `find` does."""
        point, self._found = find_among(search, self._found, self._prove, self._report)
        return point

    def has_damaged_part(self, checkpoint: Checkpoint) -> bool:
        """Whether another file of the same save is damaged, as far as that was examined."""
        by_all = _takes_all_numbers(checkpoint, self._found)
        if checkpoint.kind != "checkpoint" or by_all is None:
            return False
        own = _place_of(checkpoint)
        save = own.parent, _numbers_of(own.name, by_all=by_all)
        newest: dict[Path, Checkpoint] = {}
        for other in sorted(self._found, key=_saved_unix_s):
            newest[_place_of(other)] = other
        return any(
            (place.parent, _numbers_of(place.name, by_all=by_all)) == save
            and place != own
            and _is_of_a_part(place, own)
            and is_damaged(other)
            for place, other in newest.items()
        )


def _place_of(checkpoint: Checkpoint) -> Path:
    return Path(checkpoint.source or checkpoint.path)


def _saved_unix_s(checkpoint: Checkpoint) -> float:
    return checkpoint.saved_unix_s


def _numbers_of(name: str, *, by_all: bool) -> tuple[int, ...]:
    """Return the numbers by which the files of a save are known: the last in their names, or all of them."""
    numbers = list_numbers(name)
    return numbers if by_all else numbers[-1:]


def _takes_all_numbers(checkpoint: Checkpoint, others: Iterable[Checkpoint]) -> bool | None:
    """Whether it takes all numbers in its name to know its save: that of `model_state_e5_b0.th` is epoch 5, batch 0.

    None where its numbers are those of the other saves, too, as in `last_v2.pt` and `best_v2.pt`.
    """
    if checkpoint.number is None:
        return None
    names = [_place_of(other).name for other in others if other.series == checkpoint.series]
    return _is_by_all(_place_of(checkpoint).name, names)


def _is_by_all(own: str, names: Sequence[str]) -> bool | None:
    """As `_takes_all_numbers`, by the names of files of one series."""
    differ = {
        by_all: any(_numbers_of(name, by_all=by_all) != _numbers_of(own, by_all=by_all) for name in names)
        for by_all in (False, True)
    }
    return next((by_all for by_all, does in differ.items() if does), None)


def _pass_over(search: Search, point: ResumePoint, look: _Looks, *, needs_others: bool) -> ResumePoint | None:
    """Return `point`, or one of an older save that can be read whole; None where there is none."""
    passed_over: list[str] = []
    while point.checkpoint is not None and (
        _is_apart(point.checkpoint, search, needs_others=needs_others)
        or look.has_damaged_part(point.checkpoint)
        or _misses_part(point.checkpoint)
    ):
        torn = point.checkpoint
        passed_over.append(torn.title)
        point = look(replace(search, older_than=torn))
        if point.checkpoint is None or not older(point.checkpoint, torn):
            return None
    if not passed_over:
        return point
    why = f"passed over, as the files that belong to it are not all there as they were saved: {passed_over[0]}"
    return replace(point, reason=f"{point.reason}; {why}")


def _is_apart(checkpoint: Checkpoint, search: Search, *, needs_others: bool) -> bool:
    """Whether a generation cannot be read together with the other files that the program reads."""
    if needs_others and checkpoint.source is not None and checkpoint.kind == "checkpoint":
        return hand_over_in_place(checkpoint, needs_others=True) is checkpoint
    return _is_torn(checkpoint, search.generations)


def _is_torn(checkpoint: Checkpoint, generations: Iterable[Checkpoint]) -> bool:
    """Whether a generation is one of several files of a save, and the training has written its file again since."""
    source, number = checkpoint.source, checkpoint.number
    if source is None or number is None or checkpoint.kind != "checkpoint":
        return False
    by_all = _takes_all_numbers(checkpoint, tuple(generations))
    if by_all is None:
        return False
    own = _find_own_file(checkpoint, source)
    if own is None or checkpoint.is_of(own):
        return False
    return apart(_has_another_part, source, by_all=by_all)


def _find_own_file(generation: Checkpoint, source: str) -> Checkpoint | None:
    """Return the training's own file, from which a generation was captured, as it is now; None where it is gone."""
    now = fingerprint(Path(source))
    return None if now is None else replace(generation, path=source, source=None, fingerprint=now)


def _is_of_a_part(other: Path, own: Path) -> bool:
    """Whether a file may by its suffix hold a part of a save, or by its name what is to be known of it."""
    if other.suffix == own.suffix or other.suffix in STATE_SUFFIXES:
        return True
    names = (_DIGITS.sub("#", own.stem), _DIGITS.sub("#", own.name))
    return other.suffix in FACTS_SUFFIXES and _DIGITS.sub("#", other.stem) in names


def _has_another_part(path: str, *, by_all: bool) -> bool:
    """Whether next to a file lies another of the same number and kind, as `opt000040.pt` next to `model000040.pt`."""
    own = Path(path)
    save = _numbers_of(own.name, by_all=by_all)
    return any(_numbers_of(name, by_all=by_all) == save for name in _list_parts(own) if name != own.name)


def _has_facts(path: str) -> bool:
    """Whether next to a file lies what a program has written about it, under its name."""
    own = Path(path)
    return any(name.suffix in FACTS_SUFFIXES for name in map(Path, _list_parts(own)))


def _list_parts(own: Path) -> list[str]:
    """Return a file's name and those next to it that may by their suffix hold a part of a save; none if it is gone."""
    try:
        if not own.is_file():
            return []
        with os.scandir(own.parent) as entries:
            names = [entry.name for entry in islice(entries, LOOKED_AT) if entry.is_file()]
    except OSError:
        return []
    return [name for name in names if _is_of_a_part(Path(name), own)]


def _misses_part(checkpoint: Checkpoint) -> bool:
    """Whether the last save of a series lacks a file that all before it have: a kill came before that was written."""
    if checkpoint.kind != "checkpoint" or checkpoint.number is None:
        return False
    own = _place_of(checkpoint)
    names = apart(_list_parts, own)
    series = _DIGITS.sub("#", own.name)
    by_all = _is_by_all(own.name, [name for name in names if _DIGITS.sub("#", name) == series])
    if by_all is None:
        return False
    parts: dict[tuple[int, ...], set[str]] = {}
    for name in names:
        parts.setdefault(_numbers_of(name, by_all=by_all), set()).add(_DIGITS.sub("#", name))
    mine = _numbers_of(own.name, by_all=by_all)
    others = {numbers: found for numbers, found in parts.items() if numbers != mine and series in found}
    if mine not in parts or len(others) < SAVES_ALIKE or max(others) > mine:
        return False
    return not set.intersection(*others.values()) <= parts[mine]
