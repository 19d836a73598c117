"""The daemon's own checks for `doctor`: threads, sources, record, kernel log, alerts, GPUs and jobs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from supervisor.children.installed import was_replaced
from supervisor.children.start import why_not_apart
from supervisor.control.types import DoctorLine
from supervisor.core.remedies.gpu_issues import issues_of
from supervisor.daemon.fence import describe_degraded
from supervisor.daemon.thread_kinds import count_most, count_threads
from supervisor.daemon.wiring import Assembly
from supervisor.runner.attempt_folder import is_hidden


class DaemonChecks:
    """Looks at the parts of a running daemon."""

    def __init__(self, parts: Assembly) -> None:
        self._parts = parts

    def doctor(self) -> Sequence[DoctorLine]:
        """Return a line for each part that is checked."""
        return [
            *self._check_parts(),
            *self._check_sources(),
            *self._check_kernel_log(),
            *self._check_record(),
            *self._check_alerts(),
            *self._check_gpus(),
            *self._check_jobs(),
            *self._check_left_running(),
            *self._check_hidden(),
        ]

    def _check_parts(self) -> Iterator[DoctorLine]:
        for part, error in list(self._parts.loop.fences.failures.items()):
            yield DoctorLine(name="daemon", level="fail", found=f"{part} failed: {error}")
        if (why := why_not_apart()) is not None:
            yield DoctorLine(
                name="children",
                level="warn",
                found=f"child processes inherit the daemon's open files ({why}): while a file system hangs under "
                "one of these files, no training can be started",
                remedy="allow unshare(2) or close_range(2), for instance in the container's seccomp profile",
            )
        if was_replaced():
            yield DoctorLine(
                name="version",
                level="warn",
                found="the package was replaced since the daemon began, which is of the version before",
                remedy="sudo systemctl restart rocm-supervisor; trainings go on",
            )
        yield from self._check_threads()

    def _check_threads(self) -> Iterator[DoctorLine]:
        """Yield a line for each thread whose work is overdue, and for each that was restarted."""
        now, posts = self._parts.clock.now(), self._parts.threads.posts()
        late = [post for post in posts if post.overdue(now)]
        for post in late:
            yield DoctorLine(
                name=f"thread {post.name}",
                level="warn",
                found=f"{post.at} has not ended for {post.age_s(now):.0f} s (limit {post.limit_s:g} s)",
            )
        for post in posts:
            if post.restarts:
                why = f" (last error: {post.error})" if post.error else ""
                yield DoctorLine(
                    name=f"thread {post.name}", level="warn", found=f"restarted {post.restarts} times{why}"
                )
        jobs = set(self._parts.settings.jobs) | {post.job for post in posts if post.job is not None}
        most, count = count_most(len(jobs), len(self._parts.settings.alerts)), count_threads()
        if count > most:
            yield DoctorLine(
                name="threads",
                level="fail",
                found=f"{count} threads, more than the {most} that {len(jobs)} jobs can need",
                remedy="report this defect with the output of py-spy dump; restart the daemon, trainings go on",
            )
        elif not late:
            yield DoctorLine(name="threads", level="ok", found=f"{count} threads of {most} at most, none overdue")

    def _check_sources(self) -> Iterator[DoctorLine]:
        for source_status in self._parts.gpus.status():
            cost = "" if source_status.cost_s is None else f", {source_status.cost_s * 1000:.2f} ms a reading"
            yield DoctorLine(
                name=f"source {source_status.name}",
                level="ok" if source_status.answering or source_status.cost_s is None else "warn",
                found=f"{source_status.detail}{cost}",
            )

    def _check_kernel_log(self) -> Iterator[DoctorLine]:
        if self._parts.kernel is None:
            yield DoctorLine(
                name="kernel log", level="warn", found="switched off", remedy="set kernel_log.enabled = true"
            )
            return
        problem, source = self._parts.kernel.problem, self._parts.kernel.source
        how = "read in real time" if source == "kmsg" else f"read from the {source}: no permission to read /dev/kmsg"
        yield DoctorLine(name="kernel log", level="fail" if problem else "ok", found=problem or how)
        if self._parts.kernel.lost:
            yield DoctorLine(
                name="kernel log",
                level="warn",
                found=f"{self._parts.kernel.lost} lines of the kernel log were overwritten before they were read",
                remedy="increase the buffer with the kernel parameter log_buf_len=16M",
            )
        if self._parts.uevents is not None and (problem := self._parts.uevents.problem) is not None:
            yield DoctorLine(name="uevents", level="warn", found=problem)

    def _check_record(self) -> Iterator[DoctorLine]:
        store = self._parts.store
        yield DoctorLine(
            name="database", level="fail" if store.problem else "ok", found=store.problem or f"{store.path} is written"
        )
        yield from (DoctorLine(name="database", level="warn", found=notice) for notice in store.notices)

    def _check_alerts(self) -> Iterator[DoctorLine]:
        for problem in self._parts.announcer.failing():
            remedy = "correct [alerts.NAME], then run `supervisorctl alerts test NAME`"
            yield DoctorLine(name="alerts", level="fail", found=problem, remedy=remedy)

    def _check_gpus(self) -> Iterator[DoctorLine]:
        newest = self._parts.newest
        if not newest.gpus:
            yield DoctorLine(
                name="gpus",
                level="warn",
                found="no GPU reports readings; trainings are monitored by process, output, steps and host",
                remedy="check `ls /sys/class/drm`: the amdgpu driver creates an entry for each GPU",
            )
        for gpu, reading in newest.gpus.items():
            what = " ".join(text for text in (reading.name, reading.gfx_version) if text) or "amdgpu"
            yield DoctorLine(name=f"gpu {gpu}", level="ok", found=f"{what}, by {reading.source}")
            for issue in issues_of(reading.gfx_version):
                yield DoctorLine(
                    name=f"known {gpu}",
                    level="warn" if issue.remedy else "ok",
                    found=f"{reading.gfx_version}: {issue.what} ({issue.source})",
                    remedy=issue.remedy,
                )

    def _check_left_running(self) -> Iterator[DoctorLine]:
        for job in self._parts.left_running.list_jobs():
            yield DoctorLine(
                name=f"job {job}",
                level="warn",
                found=f"its training runs unsupervised: [jobs.{job}] was not in the configuration that this daemon "
                "started with",
                remedy=f"add [jobs.{job}] again, then `supervisorctl reload`: the training is adopted as it runs",
            )

    def _check_hidden(self) -> Iterator[DoctorLine]:
        for job, _, shim_pid in self._parts.telemetry.live():
            if is_hidden(shim_pid):
                yield DoctorLine(
                    name=f"job {job}",
                    level="warn",
                    found=f"/proc hides its processes (process {shim_pid}), as with the mount option hidepid or the "
                    "unit's setting ProtectProc: their memory, processor time and waits are not seen, and of stacks "
                    "only those that they dump themselves",
                    remedy="mount /proc with gid=GROUP as well as hidepid, and add the daemon's user to that group; or "
                    "remove ProtectProc from the daemon's unit",
                )

    def _check_jobs(self) -> Iterator[DoctorLine]:
        for job_state in list(self._parts.loop.job_states.values()):
            job, history = job_state.job, job_state.history
            for degraded in list(job_state.degraded.values()):
                yield DoctorLine(
                    name=f"job {job.name}",
                    level="warn",
                    found=f"supervision degraded: {describe_degraded(degraded)}",
                    remedy="other checks of this job continue; see the traceback in the daemon's log",
                )
            for shut in history.saves.closed if history is not None and not history.over else ():
                yield DoctorLine(
                    name=f"job {job.name}",
                    level="fail",
                    found=f"checkpoints cannot be read: {shut.partition(': ')[0]}",
                    remedy=shut.partition(": ")[2],
                )
            if history is not None and job.phase.value == "running" and not history.claimed:
                yield DoctorLine(
                    name=f"job {job.name}",
                    level="warn",
                    found="no steps are reported; monitored by process, output, GPU readings and kernel log",
                    remedy="call rocm_agent.step(loss=...) in the training, or let it step a torch optimizer",
                )
