"""Moves checkpoints out of a training's own search, then execs it: `ATTEMPT KEPT CHOSEN PATH... -- COMMAND ...`.

It runs as the training's user, in the job's working directory, and imports only the standard library. Each path goes,
by one rename, into a hidden folder next to it and under a name that no pattern of checkpoints finds. Nothing is
deleted or replaced, and a run that was killed is completed by the next one. What names a moved checkpoint, a link or
a file such as `latest`, names the chosen one after it where that lies in the same folder; as it was it is kept too.

KEPT is the content that CHOSEN will have: where that was moved by the launch of an earlier attempt, the other files of
its save are put back with it, and a link or file that was changed then names it again.
"""

from __future__ import annotations

import json
import os
import re
import sys
from itertools import islice
from pathlib import Path

COULD_NOT = 78
"""EX_CONFIG of sysexits.h: the training was not started."""
FOLDER = ".rocm-supervisor-aside"
PREFIX, SUFFIX = "aside.", ".aside"
"""Programs that search all folders below theirs, hidden ones too, know a checkpoint by either end of its name."""
POINTERS = re.compile(r"checkpoint|(?:latest|last|newest)(?:[_-][A-Za-z_-]+)?(?:\.txt)?")
"""Files that hold the newest checkpoint's name, its path, or its number: DeepSpeed's `latest`, detectron2's and
mmengine's `last_checkpoint`, Megatron's `latest_checkpointed_iteration.txt`."""
POINTER_LIMIT_BYTES = 4096
OF_TENSORFLOW = "checkpoint"
_PATH_OF_TENSORFLOW = re.compile(r'(?<=\bmodel_checkpoint_path: ")[^"\n]+(?=")')
"""In TensorFlow's file `checkpoint`: what its newest save is called, without the suffixes of its files."""
STATE_LIMIT_BYTES = 1 << 20
ENTRIES_LIMIT = 100_000
PART = ".rocm-supervisor-part"
MOVED_TOGETHER = "moved-together"
"""File in the folder of an attempt: what its launch moved, of all folders, each path as one line of JSON."""
LIST_LIMIT_BYTES = 1 << 24
_SUFFIXES = re.compile(r"(?:\.[A-Za-z][A-Za-z0-9]*)+(?:-\d+-of-\d+)?$")
_RANK = re.compile(r"(?<![A-Za-z])(?:rank|shard|world_?size)[_-]?\d+", re.IGNORECASE)
"""As in core/checkpoints/checkpoint.py, of which this isolated program imports nothing."""


def set_aside(attempt: str, kept: Path, chosen: Path, paths: list[Path]) -> tuple[list[Path], list[Path]]:
    """Move what is there of `paths`; return where it lies now, and what was put back. Raises OSError."""
    there = [path for path in paths if os.path.lexists(path)]
    if len(there) > 1:
        for folder in {path.parent for path in there}:
            _list_moved_together(_make_folder(folder, attempt), there)
    moved = [_move(path, attempt) for path in there]
    before = _find_moved(kept, chosen)
    returned = _put_back_others(before, chosen, attempt) if before is not None else []
    save = _find_save(chosen, paths)
    _repoint(save.parent, save.name, attempt, before)
    if before is not None:  # last: a run that was killed in between is completed by the next one, which finds it
        returned.append(_return(before, chosen, attempt))
    return moved, returned


def _find_save(chosen: Path, paths: list[Path]) -> Path:
    """Return `chosen`, or the folder above it that is a save as those of `paths` are: `iter_4` of `iter_4/model.pt`."""
    alike = set(map(_without_digits, paths))
    return next((path for path in (chosen, *chosen.parents) if _without_digits(path) in alike), chosen)


def _without_digits(path: Path) -> tuple[Path, str]:
    return path.parent, re.sub(r"\d+", "#", path.name)


def _move(path: Path, attempt: str) -> Path:
    aside = _find_free_name(path, attempt)
    path.rename(aside)
    return aside


def _list_moved_together(folder: Path, paths: list[Path]) -> None:
    """Write down what one launch moves, before it does."""
    with (folder / MOVED_TOGETHER).open("a", encoding="utf-8") as file:
        file.writelines(json.dumps(str(path.absolute())) + "\n" for path in paths)


def _find_moved(kept: Path, chosen: Path) -> Path | None:
    """Return the file with the content of `kept` that another launch moved from the place of `chosen`."""
    content = _look_at(kept)
    names = chosen.parent.glob(f"{FOLDER}/*/{PREFIX}*{SUFFIX}") if content is not None else ()
    return next((aside for aside in names if _is_of(aside, chosen.name) and _look_at(aside) == content), None)


def _is_of(aside: Path, name: str) -> bool:
    return re.fullmatch(re.escape(PREFIX + name) + r"(?:\.\d+)?" + re.escape(SUFFIX), aside.name) is not None


def _look_at(path: Path) -> tuple[int, int] | None:
    """Return size and time of a file, which a copy of it has too; None for what is none."""
    if path.is_symlink() or not path.is_file():
        return None
    found = path.stat()
    return found.st_size, found.st_mtime_ns


def _put_back_others(moved: Path, chosen: Path, attempt: str) -> list[Path]:
    """Put back the other files of the save of a moved one, and move away what was written in their place since."""
    returned = []
    for path in _list_of_save(chosen.absolute(), _read_moved_together(moved.parent)):
        aside = path.parent / FOLDER / moved.parent.name / f"{PREFIX}{path.name}{SUFFIX}"
        if _look_at(aside) is not None:
            returned.append(_return(aside, path, attempt))
    return returned


def _list_of_save(chosen: Path, together: list[Path]) -> list[Path]:
    """Return the other files of the save of `chosen` among those that were moved with it.

    Where the last number in the names stays from save to save, as in `model_state_e5_b0.th`, it takes all of them.
    """
    others = [path for path in together if path != chosen and last_number(path.name) == last_number(chosen.name)]
    series = set(map(_without_digits, (chosen, *others)))
    if len(series) > len(others):
        return others
    return [path for path in others if _numbers_of(path.name) == _numbers_of(chosen.name)]


def _return(aside: Path, path: Path, attempt: str) -> Path:
    if os.path.lexists(path):
        _move(path, attempt)
    aside.rename(path)
    return path


def _read_moved_together(folder: Path) -> list[Path]:
    try:
        with (folder / MOVED_TOGETHER).open(encoding="utf-8") as file:
            lines = file.read(LIST_LIMIT_BYTES).splitlines()
    except (FileNotFoundError, UnicodeDecodeError):
        return []
    return list(dict.fromkeys(path for line in lines if (path := _read_path(line)) is not None))


def _read_path(line: str) -> Path | None:
    """Return the path in a line of the list; None for one that a kill has cut short."""
    try:
        return Path(json.loads(line))
    except (ValueError, TypeError):
        return None


def last_number(name: str) -> str | None:
    """Return what the files of one save have in common: the last number in their names, `40` of `net_40_rank0.pth`."""
    found = _numbers_of(name)
    return str(found[-1]) if found else None


def _numbers_of(name: str) -> list[int]:
    return [int(digits) for digits in re.findall(r"\d+", _RANK.sub("", _SUFFIXES.sub("", name)))]


def _find_free_name(path: Path, attempt: str) -> Path:
    """Make the folder for what lies next to a path, and return a name in it that is not used."""
    folder = _make_folder(path.parent, attempt)
    aside, number = folder / f"{PREFIX}{path.name}{SUFFIX}", 1
    while os.path.lexists(aside):
        number += 1
        aside = folder / f"{PREFIX}{path.name}.{number}{SUFFIX}"
    return aside


def _make_folder(parent: Path, attempt: str) -> Path:
    folder = parent / FOLDER / attempt
    folder.mkdir(parents=True, exist_ok=True)
    if folder.resolve() != parent.resolve() / FOLDER / attempt:
        raise OSError(f"{folder} is a link to another folder")
    return folder


def _repoint(folder: Path, chosen: str, attempt: str, before: Path | None) -> None:
    """Have the links and files in a folder that name what was moved out of it name `chosen`, which lies in it.

    So have those that were changed as `before` was moved, which is `chosen` and was put back.
    """
    aside = _list_aside(folder)
    if not aside:
        return
    with os.scandir(folder) as entries:
        found = [Path(entry.path) for entry in islice(entries, ENTRIES_LIMIT) if _may_point(entry)]
    for pointer in found:
        target = _read_target(pointer)
        name = target.rpartition("/")[2]
        new = _number_like(target, chosen) if target.isdecimal() and not pointer.is_symlink() else chosen
        changed = before is not None and os.path.lexists(before.with_name(f"{PREFIX}{pointer.name}{SUFFIX}"))
        if new is not None and name != new and ((changed and name) or _is_gone(folder, name, aside)):
            _replace_pointer(pointer, target[: len(target) - len(name)] + new, attempt)
        elif pointer.name == OF_TENSORFLOW and pointer.is_file() and not pointer.is_symlink():
            _repoint_tensorflow(pointer, _SUFFIXES.sub("", chosen), attempt, aside)


def _number_like(number: str, chosen: str) -> str | None:
    """Return the last number in the name `chosen` as a file has it that holds `number`; None where it has none."""
    found = last_number(chosen)
    return found and found.zfill(len(number) if number.startswith("0") else 1)


def _is_gone(folder: Path, name: str, aside: set[str]) -> bool:
    """Whether what a name, or a number alone, stands for was moved out of a folder, and nothing of it is there."""
    if f"{PREFIX}{name}{SUFFIX}" in aside:
        return not os.path.lexists(folder / name)
    if not name.isdecimal():
        return False
    number = str(int(name))
    moved = (other.removeprefix(PREFIX).removesuffix(SUFFIX) for other in aside)
    return number in map(last_number, moved) and number not in map(last_number, os.listdir(folder))  # noqa: PTH208 - names


def _repoint_tensorflow(pointer: Path, chosen: str, attempt: str, aside: set[str]) -> None:
    """Have the file in which TensorFlow names its newest save name `chosen`, where that one was moved."""
    if pointer.stat().st_size > STATE_LIMIT_BYTES:
        return
    text = pointer.read_bytes().decode("utf-8", "replace")
    found = _PATH_OF_TENSORFLOW.search(text)
    if found is None:
        return
    name = found[0].rpartition("/")[2]
    index = f"{name}.index"
    if f"{PREFIX}{index}{SUFFIX}" in aside and not os.path.lexists(pointer.with_name(index)):
        end = found.end()
        _replace_pointer(pointer, text[: end - len(name)] + chosen + text[end:], attempt)


def _list_aside(folder: Path) -> set[str]:
    """Return the names under which the checkpoints of a folder were moved out of it, for any attempt."""
    return {path.name for path in (folder / FOLDER).glob("*/*")}


def _may_point(entry: os.DirEntry[str]) -> bool:
    return entry.is_symlink() or (POINTERS.fullmatch(entry.name) is not None and entry.is_file(follow_symlinks=False))


def _read_target(pointer: Path) -> str:
    """Return what a link or a file names; empty where that is no single name."""
    try:
        if pointer.is_symlink():
            return os.readlink(pointer).rstrip("/")  # noqa: PTH115 - the text, which may end in a slash
        with pointer.open("rb") as file:
            text = file.read(POINTER_LIMIT_BYTES).decode("utf-8").strip()
    except (OSError, UnicodeDecodeError):
        return ""
    return "" if "\n" in text else text.rstrip("/")


def _replace_pointer(pointer: Path, target: str, attempt: str) -> None:
    """Replace a link or a file by one that names `target`, and keep it as it was."""
    part, kept = pointer.with_name(pointer.name + PART), _find_free_name(pointer, attempt)
    part.unlink(missing_ok=True)
    if pointer.is_symlink():
        kept.symlink_to(os.readlink(pointer))  # noqa: PTH115 - the text as it is
        part.symlink_to(target)
    else:
        kept.write_bytes(pointer.read_bytes())
        part.write_text(target, "utf-8")
        part.chmod(pointer.stat().st_mode & 0o777)
    part.replace(pointer)


def main(arguments: list[str]) -> None:
    """Move the checkpoints, print what was done, and exec the command."""
    between = arguments.index("--")
    (attempt, kept, chosen, *paths), command = arguments[:between], arguments[between + 1 :]
    try:
        moved, returned = set_aside(attempt, Path(kept), Path(chosen), [Path(path) for path in paths])
        for aside in moved:
            sys.stdout.write(f"rocm-supervisor: newer than the checkpoint to resume from, moved to {aside}\n")
        for path in returned:
            sys.stdout.write(f"rocm-supervisor: of the save to resume from, moved before, put back as {path}\n")
        sys.stdout.flush()
    except OSError as error:
        sys.stderr.write(f"rocm-supervisor: a checkpoint could not be moved aside: {error}\n")
        sys.exit(COULD_NOT)
    try:
        os.execvp(command[0], command)  # noqa: S606 - the job's own command
    except OSError as error:
        sys.stderr.write(f"rocm-supervisor: command {command[0]!r} of the job: {error}\n")
        sys.exit(COULD_NOT)


if __name__ == "__main__":
    main(sys.argv[1:])
