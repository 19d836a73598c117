"""Reads the configuration and reports all problems in it."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from supervisor.children.path_looks import PathLooks, find_silent
from supervisor.config.cross import cross_check
from supervisor.config.files import (
    FOLDER,
    LARGEST_BYTES,
    NAMED_TABLES,
    ConfigFile,
    FileError,
    as_text,
    list_paths,
    merge,
    parse,
    read_files,
    read_text,
)
from supervisor.config.positions import dot_paths, find_lines, find_longest
from supervisor.config.problems import ConfigError, Level, Problem
from supervisor.config.read import Reader
from supervisor.config.settings import Settings
from supervisor.core.remedies.presets import env_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Checked:
    """What the configuration came to: settings and at most warnings, or None and at least one error."""

    settings: Settings | None
    problems: tuple[Problem, ...]
    files: tuple[str, ...] = ()
    """What it was read from: the file itself, then those of `conf.d`; empty where one of them cannot be read."""
    text: str | None = None
    """All of it as one text: the file as it is, or merged with what is in `conf.d`; None without settings."""

    @property
    def warnings(self) -> tuple[Problem, ...]:
        """What can be lived with."""
        return tuple(problem for problem in self.problems if problem.level is Level.WARNING)


def load(path: Path) -> Settings:
    """Return the settings in the file and in `conf.d`; raise ConfigError with every problem where they are unusable."""
    checked = check(path)
    if checked.settings is None:
        raise ConfigError(checked.problems)
    return checked.settings


def check(path: Path) -> Checked:
    """Read and check the file and `conf.d` next to it; never raises for what they hold or for their absence."""
    try:
        return _check_files(read_files(path))
    except FileError as error:
        return Checked(settings=None, problems=(error.problem,))


def check_if_it_answers(config: Path) -> tuple[Checked, bool]:
    """Check the configuration, and return whether its file systems answer: one that does not is not touched."""
    with PathLooks() as looks:
        silent = find_silent_part(config, looks)
    if silent is None:
        return check(config), True
    remedy = "see to its file system, or name a configuration elsewhere"
    problem = Problem(file=str(config), key="", problem=f"cannot be read: {silent}", allowed=remedy)
    return Checked(settings=None, problems=(problem,)), False


def find_silent_part(config: Path, looks: PathLooks) -> str | None:
    """Return which part of the paths of a configuration does not answer, so that it must not be touched."""
    for path in (config, config.parent / FOLDER):
        if (silent := find_silent(looks, path)) is not None:
            return silent
    try:
        others = list_paths(config)[1:]
    except OSError:
        return None  # what is wrong there is said by whoever reads it
    return next((silent for path in others if (silent := find_silent(looks, path)) is not None), None)


def check_alone(path: Path, largest_bytes: int = LARGEST_BYTES) -> Checked:
    """Read and check one file without `conf.d`; never raises for what it holds or for its absence."""
    try:
        return check_text(read_text(path, largest_bytes), str(path))
    except FileError as error:
        return Checked(settings=None, problems=(error.problem,))


def check_text(text: str, file: str) -> Checked:
    """Check the text of a configuration; `file` is its name in messages, and where secrets' modes are judged by."""
    try:
        return _check_files([parse(text, file)])
    except FileError as error:
        return Checked(settings=None, problems=(error.problem,))


def _check_files(files: Sequence[ConfigFile]) -> Checked:
    values, twice = merge(files)
    main = files[0].path
    reader = Reader(main)
    settings = reader.table(Settings, values)
    problems = reader.problems
    if settings is not None:
        known_problems = tuple(problem.key for problem in problems)
        problems += [
            problem
            for problem in _cross_check_each(settings, files)
            if not any(key.startswith(problem.key) for key in known_problems)
        ]
    located = [*twice, *_locate_each(problems, files)]
    usable = not any(problem.level is Level.ERROR for problem in located)
    names = tuple(file.path for file in files)
    if not usable:
        return Checked(settings=None, problems=tuple(located), files=names)
    text = files[0].text if len(files) == 1 else as_text(values)
    settings = None if settings is None else _add_presets(settings)
    return Checked(settings=settings, problems=tuple(located), files=names, text=text)


def _add_presets(settings: Settings) -> Settings:
    """Return settings with the variables of each job's preset in its `env`, which outranks them."""
    jobs = {
        name: job if job.preset is None else msgspec.structs.replace(job, env={**(env_of(job.preset) or {}), **job.env})
        for name, job in settings.jobs.items()
    }
    return msgspec.structs.replace(settings, jobs=jobs)


def _cross_check_each(settings: Settings, files: Iterable[ConfigFile]) -> Iterator[Problem]:
    """Yield what does not fit together; a job and a receiver are judged with the file that they are in."""
    with PathLooks() as looks:
        for index, file in enumerate(files):
            jobs, alerts = (_names_in(file, table) for table in NAMED_TABLES)
            part = msgspec.structs.replace(
                settings,
                jobs={name: job for name, job in settings.jobs.items() if name in jobs},
                alerts={name: receiver for name, receiver in settings.alerts.items() if name in alerts},
            )
            for problem in cross_check(part, file.path, looks):
                if index == 0 or problem.key.partition(".")[0] in NAMED_TABLES:
                    yield problem


def _names_in(file: ConfigFile, table: str) -> Collection[str]:
    named = file.values.get(table)
    return named.keys() if isinstance(named, dict) else ()


def _locate_each(problems: Sequence[Problem], files: Sequence[ConfigFile]) -> Iterator[Problem]:
    """Yield each problem with the file and the line of its key, or of the nearest table around it."""
    lines_by_file = {file.path: dot_paths(find_lines(file.text)) for file in files} if problems else {}
    for problem in problems:
        best, place, line = 0, problem.file, None
        for file, lines in lines_by_file.items():
            found = find_longest(lines, problem.key)
            if found is not None and len(found[0]) > best:
                best, place, line = len(found[0]), file, found[1]
        yield replace(problem, file=place, line=line)
