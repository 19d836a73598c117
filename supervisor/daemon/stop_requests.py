"""Keeps on disk which jobs their user asked to stop, outside the record: a stop may be carried out before its commit.

STATE/requests/JOB exists for as long as the user's last request for the job is to stop it. It is written before the
request is answered and read by the next daemon, which may find a record that does not know of it.
"""

from __future__ import annotations

import json
import logging
import os
import threading
from collections.abc import Callable
from pathlib import Path

from supervisor.core import events as ev
from supervisor.core.foreign_values import as_float, as_int, as_text, read_json_object
from supervisor.core.moments import Moment
from supervisor.daemon.fence import describe_error
from supervisor.daemon.threads import Threads
from supervisor.own_places import make_way

log = logging.getLogger(__name__)

FOLDER = "requests"
KEEP_LIMIT_S = 1.0
"""How long a request waits for a disk that does not answer."""
FILE_LIMIT_BYTES = 4096
VERSION = 1


class StopRequests:
    """One file per job, written in a thread of the job's own, so that a disk that hangs delays no other request."""

    def __init__(self, state: Path, threads: Threads) -> None:
        self._folder = state / FOLDER
        self._threads = threads
        self._asking = threading.Lock()

    def ask(self, request: ev.UserRequest, put: Callable[[ev.UserRequest], None]) -> None:
        """Keep a request and pass it on: what is kept and what is decided have one order."""
        with self._asking:
            self.keep(request)
            put(request)

    def keep(self, request: ev.UserRequest) -> bool:
        """Write, or remove, the file that a request asks for; for threads that may wait `KEEP_LIMIT_S`.

        Return whether that is done. Where it is not, it is done once the disk answers; later requests wait for it.
        """
        done = threading.Event()

        def change() -> None:
            try:
                self._change(request)
            except OSError as error:
                fields = {"job": request.job, "ask": request.ask.value, "error": describe_error(error)}
                log.error("request.not_kept", extra={"fields": fields})
            else:
                done.set()

        self._threads.lane("requests of the user", request.job).do(f"keeping {request.ask.value}", change)
        return done.wait(KEEP_LIMIT_S)

    def find(self, job: str, now: Moment) -> ev.UserRequest | None:
        """Return the request to stop a job; None where its user did not ask for that last.

        A file of a later version is one, too: a job that its user may have stopped is not run.
        """
        found = self._read(job)
        if found is None:
            return None
        if (version := as_int(found.get("version"))) is not None and version > VERSION:
            fields = {"job": job, "file": str(self._folder / job), "version": version, "known": VERSION}
            log.error("request.newer_version", extra={"fields": fields})
        return ev.UserRequest(at=now, job=job, ask=ev.Ask.STOP, by=as_text(found.get("by")) or "unknown")

    def asked_unix_s(self, job: str) -> float | None:
        """Return when the request to stop a job was made; None where there is none, or it does not say."""
        return as_float((self._read(job) or {}).get("unix_s"))

    def _read(self, job: str) -> dict[str, object] | None:
        try:
            with (self._folder / job).open("rb") as file:
                return read_json_object(file.read(FILE_LIMIT_BYTES)) or {}
        except FileNotFoundError:
            return None
        except OSError as error:
            log.error("request.unreadable", extra={"fields": {"job": job, "error": describe_error(error)}})
            return None

    def forget(self, job: str) -> None:
        """Remove what is kept of a job. Raises OSError."""
        (self._folder / job).unlink(missing_ok=True)

    def _change(self, request: ev.UserRequest) -> None:
        if request.ask is not ev.Ask.STOP:
            self.forget(request.job)
            return
        self._folder.mkdir(mode=0o750, exist_ok=True)
        draft = self._folder / f".{request.job}.part"
        for place in (draft, self._folder / request.job):
            make_way(place)
        with draft.open("w", encoding="utf-8") as file:
            json.dump({"version": VERSION, "ask": "stop", "by": request.by, "unix_s": request.at.unix_s}, file)
            file.flush()
            os.fsync(file.fileno())
        draft.replace(self._folder / request.job)
        folder = os.open(self._folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
