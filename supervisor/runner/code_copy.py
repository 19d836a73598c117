"""Copies of the code that runs in trainings and shims, so that an upgrade of the package does not change it.

STATE/code/DIGEST/ mirrors the part of the package that a training, its shim and a standby import while they run. A
copy is named after its content, appears complete by one rename, and is checked each time before it is used: it is read
where any of its files may have been written since it was read last.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import logging
import os
import secrets
import shutil
import stat
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import supervisor
from supervisor import programs
from supervisor.core import attempt_files as names

log = logging.getLogger(__name__)

PARTS = (
    "agent/path",
    "agent/prove",
    "runner/background.py",
    "runner/exec_failure.py",
    "runner/interpreter.py",
    "runner/priority.py",
    "runner/process_table.py",
    "runner/place_checkpoint.py",
    "runner/set_aside.py",
    "runner/shim.py",
    "runner/shim_files.py",
    "runner/standby_shim.py",
    "runner/storage_look.py",
    "sources/outside_waits.py",
)
"""Files and folders of the package; they import nothing of the package that is not listed here."""
BYTE_CODE = "__pycache__"
FOLDER = "code"
DIGESTS = "digests.json"
"""File with the digest of every file of the copy, by name."""
NAME_CHARACTERS = 16
NAMES_TRIED = 100
DRAFT, DROPPED = ".new-", ".old-"
FILE_MODE, FOLDER_MODE = 0o444, 0o555
COMPILE_LIMIT_S = 120.0
USES_UNTIL_READ = 16
"""Of so many uses in a row one reads the whole copy, though no write changed it: a disk may return something else."""
WAIT_S = 20.0
"""How long a launch waits for a copy that another launch makes; then it makes its own."""


@dataclass(frozen=True, slots=True)
class Code:
    """The package, or a copy of a part of it."""

    root: Path

    @property
    def agent(self) -> Path:
        """The directory for PYTHONPATH."""
        return self.root / "agent" / "path"

    @property
    def prover(self) -> Path:
        """The program that proves checkpoints."""
        return self.root / "agent" / "prove" / "__main__.py"

    @property
    def put(self) -> Path:
        """The program that copies a checkpoint to where a training looks for it."""
        return self.root / "runner" / "place_checkpoint.py"

    @property
    def set_aside(self) -> Path:
        """The program that moves newer checkpoints out of a training's own search."""
        return self.root / "runner" / "set_aside.py"


INSTALLED = Code(Path(supervisor.__file__).resolve().parent)
SHIM_PROGRAM = f"{names.CODE}/runner/shim.py"
"""The shim's program, seen from an attempt's folder."""


class CodeCopies:
    """The copies below one state directory; may be used by any thread."""

    def __init__(
        self, state: Path, *, installed: Path = INSTALLED.root, same_user: bool = False, wait_s: float = WAIT_S
    ) -> None:
        """Read the installed package, which this process itself was started from.

        With `same_user`, trainings run as this user, and a Python of another version may cache its byte code there.
        """
        self._folder = state / FOLDER
        self._installed = installed
        self._same_user = same_user
        self._wait_s = wait_s
        self._making = threading.Lock()
        """Held by whoever makes a copy, but waited for only so long: the disk may hang under that one."""
        self._drafts: set[Path] = set()
        self._sources: dict[str, bytes] | None = None
        self._name: str | None = None
        self._read: tuple[Path, bytes | None] | None = None
        """The copy that was intact when all of it was read last, and its state just before."""
        self._uses = 0
        """How often it was used since."""
        try:
            self._read_installed()
        except (OSError, ValueError) as error:
            log.error("code.not_read", extra={"fields": {"folder": str(installed), "why": str(error)}})

    def current(self) -> Code:
        """Return the copy of the package installed at the start; creates it if missing or damaged.

        Raises OSError if it cannot be created, ValueError if the installed package cannot be used for it.
        """
        name = self._name or self._read_installed()
        if (place := self._find_place(name)) is not None and os.path.lexists(place):
            return Code(place)
        made_by_this_alone = self._making.acquire(timeout=self._wait_s)
        try:
            if (place := self._find_place(name)) is None:
                raise FileExistsError(f"{self._folder}: {NAMES_TRIED} damaged copies with the same name; remove them")
            return Code(place if os.path.lexists(place) else self._make_copy(place, name))
        finally:
            if made_by_this_alone:
                self._making.release()

    def current_or_installed(self) -> Code:
        """Return the copy, or the installed package if there is none; only for programs that run briefly."""
        try:
            return self.current()
        except (OSError, ValueError):
            return INSTALLED

    def prune(self, in_use: Callable[[Path], bool]) -> int:
        """Remove unused copies and incomplete drafts; return the number removed.

        `in_use` is called for every copy except the current one.
        """
        there = sorted(self._folder.iterdir()) if self._folder.is_dir() else []
        current = self._find_place(self._name or "")
        old = [place for place in there if place != current and place not in self._drafts]
        unused = [place for place in old if place.name.startswith((DRAFT, DROPPED)) or not in_use(place)]
        for place in unused:
            drop(place)
        return len(unused)

    def _find_place(self, name: str) -> Path | None:
        """Return the intact copy, or else where one can be made; None if every name is taken by a damaged one."""
        for place in self._candidate_places(name):
            if self._is_intact(place, name) or not os.path.lexists(place):
                return place
        return None

    def _is_intact(self, place: Path, name: str) -> bool:
        """Whether a copy is intact; while no file of it was written since it was read that is known."""
        state, uses = _find_state(place), self._uses + 1
        if state is not None and self._read == (place, state) and uses < USES_UNTIL_READ:
            self._uses = uses
            return True
        intact = is_intact(place, name)
        self._read, self._uses = (place, state) if intact else None, 0
        return intact

    def _candidate_places(self, name: str) -> Iterator[Path]:
        """Yield the folders for a copy: a damaged one is not repaired, since a training may still import from it."""
        yield self._folder / name
        for number in range(2, NAMES_TRIED):
            yield self._folder / f"{name}-{number}"

    def _read_installed(self) -> str:
        self._sources = sources = read_sources(self._installed)
        self._name = name_of({name: _hash_content(content) for name, content in sources.items()})
        return self._name

    def _sources_of(self, name: str) -> Mapping[str, bytes]:
        """Return the files to be copied. Raises ValueError if another version was installed meanwhile."""
        if self._sources is None:
            sources = read_sources(self._installed)
            if name_of({text: _hash_content(content) for text, content in sources.items()}) != name:
                raise ValueError(
                    f"{self._installed} was upgraded, and the copy of the previous version in {self._folder} is "
                    "missing: restart the daemon (trainings keep running)"
                )
            self._sources = sources
        return self._sources

    def _make_copy(self, place: Path, name: str) -> Path:
        sources = self._sources_of(name)
        try:
            self._folder.mkdir(mode=0o755, parents=True, exist_ok=True)
            self._folder.chmod(0o755)
            with self._new_draft() as draft:
                fill(draft, place, sources, byte_code_mode=0o755 if self._same_user else FOLDER_MODE)
                try:
                    draft.rename(place)
                except OSError:
                    if not is_intact(place, name):  # else another launch has made it meanwhile
                        raise
        except OSError as error:
            why = f"{place}: the code that trainings run could not be copied: {error.strerror or error}"
            raise OSError(error.errno, why) from error
        log.info("code.copied", extra={"fields": {"folder": str(place), "files": len(sources)}})
        self._sources = None
        return place

    @contextlib.contextmanager
    def _new_draft(self) -> Iterator[Path]:
        """Make a folder that `prune` leaves alone meanwhile; what is left of it afterwards is removed."""
        draft = self._folder / f"{DRAFT}{secrets.token_hex(8)}"
        self._drafts.add(draft)
        try:
            draft.mkdir(mode=0o700)
            yield draft
        finally:
            if os.path.lexists(draft):
                drop(draft)
            self._drafts.discard(draft)


def read_sources(package: Path) -> dict[str, bytes]:
    """Return the content of every file of PARTS by name. Raises ValueError if any user could change one of them."""
    files = (path for part in PARTS for path in _files_below(f"{package}/{part}"))
    return {path[len(f"{package}/") :]: _read_file(path) for path in files}


def refuse_writable(path: str, mode: int) -> None:
    """Raise ValueError if any user could change code that trainings will run."""
    if mode & stat.S_IWOTH and not stat.S_ISLNK(mode):
        raise ValueError(f"{path}: world-writable, but trainings would run it; run `chmod o-w` on it")


def _files_below(part: str) -> list[str]:
    """Return the Python files in a folder, or the one that `part` is; a start takes no paths of pathlib for them."""
    mode = os.lstat(part).st_mode
    refuse_writable(part, mode)
    found, folders = ([], [part]) if stat.S_ISDIR(mode) else ([part], [])
    while folders:
        with os.scandir(folders.pop()) as entries:
            for entry in entries:
                if entry.name == BYTE_CODE:
                    continue
                mode = entry.stat(follow_symlinks=False).st_mode
                refuse_writable(entry.path, mode)
                if stat.S_ISDIR(mode):
                    folders.append(entry.path)
                elif entry.name.endswith(".py"):
                    found.append(entry.path)
    return sorted(found)


def name_of(digests: Mapping[str, str]) -> str:
    """Return the name of the copy whose files have these digests."""
    text = json.dumps(dict(sorted(digests.items())))
    return hashlib.sha256(text.encode()).hexdigest()[:NAME_CHARACTERS]


def _hash_content(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


# --- one copy -----------------------------------------------------------------------------------------------------


def fill(draft: Path, place: Path, sources: Mapping[str, bytes], *, byte_code_mode: int) -> None:
    """Write the files and their byte code for this version of Python into `draft`, to be renamed to `place`.

    The byte code is not compared with its source on import, since neither changes.
    """
    written = {}
    for name, content in sources.items():
        _write_file(draft / name, content)
        written[name] = _hash_content(content)
    _compile_files(draft, place)
    for name in sources:
        compiled = _byte_code_of(draft / name)
        written[str(compiled.relative_to(draft))] = _hash_content(compiled.read_bytes())
    _write_file(draft / DIGESTS, json.dumps(written).encode() + b"\n")
    for folder, _, files in os.walk(draft, topdown=False):
        for file in files:
            Path(folder, file).chmod(FILE_MODE)
        Path(folder).chmod(byte_code_mode if folder.endswith(BYTE_CODE) else FOLDER_MODE)


def _write_file(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)


def _compile_files(draft: Path, place: Path) -> None:
    """Compile every file in a child: in this process the compiler's memory would stay for good, 0.8 MB of it.

    Isolated, so that no PYTHONPYCACHEPREFIX puts the byte code elsewhere.
    """
    command = [sys.executable, "-I", "-m", "compileall", "-q", "-f", "--invalidation-mode", "unchecked-hash"]
    command += ["-s", str(draft), "-p", str(place), str(draft)]
    done = programs.run(command, COMPILE_LIMIT_S, environment=os.environ)
    if done.status is None:
        raise OSError(errno.ETIMEDOUT, f"compiling it took more than {COMPILE_LIMIT_S:.0f} s")
    if done.status != 0:
        printed = (done.stdout + done.stderr).decode(errors="backslashreplace")
        last = printed.strip().splitlines() or [f"exit status {done.status}"]
        raise OSError(errno.EIO, f"it could not be compiled: {last[-1]}")


def _byte_code_of(source: Path) -> Path:
    return source.parent / BYTE_CODE / f"{source.stem}.{sys.implementation.cache_tag}.pyc"


def is_intact(place: Path, name: str | None) -> bool:
    """Whether a copy has the content of its name, and only files that no other user could write or can change."""
    try:
        digests = json.loads((place / DIGESTS).read_bytes())
        sources = {file: digest for file, digest in digests.items() if BYTE_CODE not in file}
        return (
            name_of(sources) == name
            and all(_hash_content(_read_file(f"{place}/{file}")) == digest for file, digest in digests.items())
            and _is_ours_alone(place, {*sources, DIGESTS})
        )
    except (OSError, ValueError, AttributeError):
        return False


def _read_file(path: str) -> bytes:
    """Return the content of a file; several hundred are read for each launch, which `Path` takes twice as long for."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        content, size = b"", os.fstat(descriptor).st_size
        while piece := os.read(descriptor, size + 1):
            content += piece
    finally:
        os.close(descriptor)
    return content


def _is_ours_alone(place: Path, expected: set[str]) -> bool:
    """Whether every file is expected, or byte code of another Python, and only this user may write it."""
    for name, status in _walk(place):
        others_write = status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
        if status.st_uid != os.geteuid() or others_write or stat.S_ISLNK(status.st_mode):
            return False
        if not stat.S_ISDIR(status.st_mode) and name not in expected and f"/{name}".split("/")[-2] != BYTE_CODE:
            return False
    return True


def _walk(place: Path) -> Iterator[tuple[str, os.stat_result]]:
    """Yield a folder and all that lies below it, by name within it; links are not followed."""
    yield "", place.lstat()
    folders = [""]
    while folders:
        within = folders.pop()
        with os.scandir(place / within) as found:
            entries = sorted(found, key=lambda entry: entry.name)
        for entry in entries:
            name, status = f"{within}{entry.name}", entry.stat(follow_symlinks=False)
            if stat.S_ISDIR(status.st_mode):
                folders.append(f"{name}/")
            yield name, status


def _find_state(place: Path) -> bytes | None:
    """Return a digest of what a write to any file of a copy changes; None where it cannot be read."""
    digest = hashlib.sha256()
    try:
        for name, found in _walk(place):
            facts = (name, found.st_ino, found.st_size, found.st_mtime_ns, found.st_uid, found.st_mode)
            digest.update(repr(facts).encode(errors="surrogateescape"))
    except OSError:
        return None
    return digest.digest()


def drop(place: Path) -> None:
    """Remove a copy or a draft; it is renamed first, so that an incomplete copy is not used."""
    aside = place.with_name(f"{DROPPED}{place.name.lstrip('.')}")
    with contextlib.suppress(OSError):
        place.rename(aside)
        place = aside
    for folder, _, _ in os.walk(place):
        with contextlib.suppress(OSError):
            Path(folder).chmod(0o700)
    shutil.rmtree(place, ignore_errors=True)


def used_by(folder: Path) -> Path | None:
    """Return the copy that the attempt in a folder runs; None if it refers to none."""
    try:
        return (folder / names.CODE).readlink()
    except OSError:
        return None


def attempts_of(place: Path, jobs: Path) -> Iterator[tuple[str, Path]]:
    """Yield the slot and the folder of each attempt, replay and standby that was launched with a copy."""
    for job in sorted(jobs.iterdir()) if jobs.is_dir() else ():
        for folder in sorted(job.iterdir()) if job.is_dir() and not job.is_symlink() else ():
            if folder.name != names.CURRENT and used_by(folder) == place:
                yield job.name, folder


@contextlib.contextmanager
def temporary_copy() -> Iterator[Code]:
    """Yield a copy of the installed package that is removed afterwards; raise OSError where it cannot be made.

    Nothing of it is compiled beforehand: an interpreter compiles what it imports, which is less than all, and keeps it.
    """
    folder = Path(tempfile.mkdtemp(prefix="rocm-supervisor-"))
    try:
        for name, content in read_sources(INSTALLED.root).items():
            _write_file(folder / name, content)
        yield Code(folder)
    finally:
        drop(folder)
