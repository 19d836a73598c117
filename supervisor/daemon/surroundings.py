"""What the daemon finds of its surroundings, for `doctor`: sources, record, kernel log; it repairs nothing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from supervisor.control.types import DoctorLine
from supervisor.core.troubles import troubles_of
from supervisor.daemon.assembly import Assembly


class Surroundings:
    """Looks at the parts of a running daemon."""

    def __init__(self, parts: Assembly) -> None:
        self._parts = parts

    def doctor(self) -> Sequence[DoctorLine]:
        """Return a line for each part that can be well or ill."""
        return [*self._sources(), *self._kernel_log(), *self._record(), *self._cards(), *self._jobs()]

    def _sources(self) -> Iterator[DoctorLine]:
        for one in self._parts.gpus.status():
            cost = "" if one.cost_s is None else f", {one.cost_s * 1000:.2f} ms a reading"
            yield DoctorLine(
                name=f"source {one.name}",
                level="ok" if one.answering or one.cost_s is None else "warn",
                found=f"{one.detail}{cost}",
            )

    def _kernel_log(self) -> Iterator[DoctorLine]:
        if self._parts.kernel is None:
            yield DoctorLine(
                name="kernel log", level="warn", found="switched off", remedy="set kernel_log.enabled = true"
            )
            return
        problem, source = self._parts.kernel.problem, self._parts.kernel.source
        how = "read as it is written" if source == "kmsg" else f"read from the {source}: /dev/kmsg may not be read"
        yield DoctorLine(name="kernel log", level="fail" if problem else "ok", found=problem or how)
        if self._parts.kernel.lost:
            yield DoctorLine(
                name="kernel log",
                level="warn",
                found=f"{self._parts.kernel.lost} lines were overwritten before they were read",
                remedy="a larger buffer: the kernel parameter log_buf_len=16M",
            )
        if self._parts.uevents is not None and (deaf := self._parts.uevents.problem) is not None:
            yield DoctorLine(name="uevents", level="warn", found=deaf)

    def _record(self) -> Iterator[DoctorLine]:
        store = self._parts.store
        yield DoctorLine(
            name="database", level="fail" if store.problem else "ok", found=store.problem or f"{store.path} is written"
        )
        yield from (DoctorLine(name="database", level="warn", found=notice) for notice in store.notices)

    def _cards(self) -> Iterator[DoctorLine]:
        newest = self._parts.newest
        if not newest.gpus:
            yield DoctorLine(
                name="cards",
                level="warn",
                found="no card answers; jobs are judged by process, output, steps and machine",
                remedy="`ls /sys/class/drm`; the amdgpu driver makes one entry a card",
            )
        for gpu, reading in newest.gpus.items():
            what = " ".join(one for one in (reading.name, reading.gfx_version) if one) or "amdgpu"
            yield DoctorLine(name=f"card {gpu}", level="ok", found=f"{what}, by {reading.source}")
            for trouble in troubles_of(reading.gfx_version):
                yield DoctorLine(
                    name=f"known {gpu}",
                    level="warn" if trouble.remedy else "ok",
                    found=f"{reading.gfx_version}: {trouble.what} ({trouble.source})",
                    remedy=trouble.remedy,
                )

    def _jobs(self) -> Iterator[DoctorLine]:
        for dossier in list(self._parts.loop.dossiers.values()):
            job, history = dossier.job, dossier.history
            if history is not None and job.phase.value == "running" and not history.claimed:
                yield DoctorLine(
                    name=f"job {job.name}",
                    level="warn",
                    found="no step counter: watched by process, output, cards and kernel log",
                    remedy="call rocm_agent.step(loss=...) in the training, or let it step a torch optimizer",
                )
