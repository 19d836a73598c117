"""`rocm-supervisord`: reads its arguments and configuration, refuses what cannot work with a reason, then runs."""

from __future__ import annotations

import argparse
import atexit
import errno
import faulthandler
import gc
import os
import signal
import sys
from pathlib import Path

from supervisor import __version__
from supervisor.children.files_apart import keep_files_apart
from supervisor.children.start import keep_apart
from supervisor.config.derive import database_url, socket_path
from supervisor.config.load import Checked, check_if_it_answers
from supervisor.config.settings import Settings
from supervisor.control.listen import ListenError
from supervisor.daemon import reload
from supervisor.daemon.launch.launchers import LauncherError
from supervisor.daemon.process import logging_setup
from supervisor.daemon.process.startup import (
    EarlyHangup,
    StateLockedError,
    keep_one_heap,
    open_standard_files,
    wait_for_state,
)
from supervisor.daemon.process.systemd import Notifier
from supervisor.daemon.service import Service
from supervisor.daemon.wiring import assemble
from supervisor.runner.launcher import shortage_of
from supervisor.store.errors import StoreError
from supervisor.store.files import database_path

EX_CONFIG = 78
EX_UNAVAILABLE = 69
"""sysexits.h: a wrong configuration, and every other error that has to be corrected before a start."""
PATH_CHARACTERS = 200


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="rocm-supervisord",
        description="Keeps trainings alive; see supervisorctl.",
        epilog="With --role node or --role leader: a part of a training on several nodes (--role node --help).",
    )
    parser.add_argument("--config", type=Path, required=True, help="the configuration file (TOML)")
    parser.add_argument("--version", action="version", version=f"rocm-supervisord {__version__}")
    return parser


def _choose_settings(config: Path) -> tuple[Checked | int, str | None]:
    """Return what to run with, or the exit status where there is nothing; and why that is not the file."""
    checked, answers = check_if_it_answers(config)
    for problem in checked.problems:
        print(problem, file=sys.stderr)  # noqa: T201 - for the person who starts it
    if checked.settings is not None:
        return checked, None
    kept = reload.find(os.environ)
    if kept is None or kept[1].settings is None:
        return EX_CONFIG if answers else EX_UNAVAILABLE, None
    refused = f"{checked.problems[0]}; running with the configuration that was last in force ({kept[0]})"
    print(refused, file=sys.stderr)  # noqa: T201 - for the person who starts it
    return kept[1], refused


def main(arguments: list[str] | None = None) -> int:
    """Run the daemon; return 0 after a stop, 78 for a wrong configuration, 69 for wrong surroundings.

    With `--role`, run a part of a training on several nodes.
    """
    open_standard_files()
    given = sys.argv[1:] if arguments is None else arguments
    own = given[: given.index("--")] if "--" in given else given
    if any(argument == "--role" or argument.startswith("--role=") for argument in own):
        from supervisor.daemon.roles import program  # noqa: PLC0415 - a daemon of one machine needs none of it

        return program.main(given)
    config: Path = _parser().parse_args(arguments).config
    try:
        return _start(config)
    except (RuntimeError, MemoryError) as error:
        lack = shortage_of(error)
        if lack is None:
            raise
        limits = "`ulimit -u`, and TasksMax= and MemoryMax= of its unit or control group, limit it"
        print(f"rocm-supervisord: this machine lacks {lack}; {limits}", file=sys.stderr)  # noqa: T201 - for the person who starts it
        return EX_UNAVAILABLE


def _start(config: Path) -> int:
    """Run the daemon with that configuration; return the exit status."""
    faulthandler.enable()
    atexit.register(gc.freeze)  # else an interpreter that ends passes all that it imported in search of garbage
    keep_one_heap()  # before the first thread
    keep_apart()  # before the first file
    keep_files_apart()
    signal.signal(signal.SIGHUP, EarlyHangup())
    logging_setup.begin("info", journal="JOURNAL_STREAM" in os.environ)
    chosen, refused = _choose_settings(config)
    if isinstance(chosen, int):
        return chosen
    assert chosen.settings is not None
    settings, text = chosen.settings, chosen.text if refused is None else None
    try:
        return _run(settings, config.absolute(), refused, text)
    except LauncherError as error:
        print(f"{config}: {error}", file=sys.stderr)  # noqa: T201 - for the person who starts it
        return EX_UNAVAILABLE if error.may_pass else EX_CONFIG
    except (StoreError, StateLockedError, ListenError) as error:
        print(f"rocm-supervisord: {error}", file=sys.stderr)  # noqa: T201 - for the person who starts it
        return EX_UNAVAILABLE
    except UnicodeEncodeError as error:
        words = f"rocm-supervisord: {error.object!a} is no name in the encoding of this locale; set LC_ALL=C.UTF-8"
        print(words, file=sys.stderr)  # noqa: T201 - the same
        return EX_UNAVAILABLE
    except OSError as error:
        where = str(error.filename or settings.supervisor.state_dir)[:PATH_CHARACTERS]
        print(f"rocm-supervisord: {where}: {error.strerror}{_find_remedy(error)}", file=sys.stderr)  # noqa: T201 - the same
        return EX_UNAVAILABLE


def _find_remedy(error: OSError) -> str:
    if error.errno in (errno.EEXIST, errno.ENOTDIR):
        return "; it is not a folder, set supervisor.state_dir to one"
    return "; mount its file system so that it can be written" if error.errno == errno.EROFS else ""


def _run(settings: Settings, config: Path, refused: str | None, text: str | None) -> int:
    logging_setup.set_level(settings.supervisor.log_level)
    notifier = Notifier.take_from_environment()
    wait_for_state(Path(settings.supervisor.state_dir), notifier, database_path(database_url(settings.supervisor)))
    with assemble(settings) as parts:
        socket = socket_path(settings.supervisor, os.environ)
        reload.keep(parts.state, text)
        return Service(parts, config, socket, notifier, refused).run()


if __name__ == "__main__":
    sys.exit(main())
