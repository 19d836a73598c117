"""A real interpreter that stands by for a real attempt, as the daemon would have it; nothing of it is left behind."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from attempts_by_hand import NOW, Attempts, until

from supervisor.core import attempt_files as names
from supervisor.runner import attempt_folder as attempts
from supervisor.runner import standby
from supervisor.runner.code_copy import INSTALLED
from supervisor.runner.launcher import LaunchError
from supervisor.runner.process_table import read_process

SLEEPING = ["sleep", "60"]
Modules = Sequence[tuple[str, str | None]]
REPORT = """
import json, os, sys
main = sys.modules["__main__"]
print(json.dumps({
    "path": sys.path, "argv": sys.argv, "orig_argv": getattr(sys, "orig_argv", None), "flags": list(sys.flags),
    "file": getattr(main, "__file__", None), "spec": getattr(main.__spec__, "name", None),
    "name": __name__, "package": __package__,
    "loader": str(main.__loader__).partition(" at ")[0], "cwd": os.getcwd(),
    "environment": {name: os.environ[name] for name in os.environ if name not in ("LC_CTYPE", "_")},
    "hooks": [str(sys.excepthook).partition(" at ")[0], [str(one).partition(" at ")[0] for one in sys.meta_path]],
    "files": sorted(os.listdir("/proc/self/fd")), "group": os.getpgid(0) == os.getpid(), "nice": os.nice(0),
    "oom": open("/proc/self/oom_score_adj").read(), "umask": os.umask(0), "main": [one for one in vars(main)],
    "signals": open("/proc/self/status").read().partition("SigBlk")[2].splitlines()[:4],
}))
"""


class Standing:
    """Attempt 1 runs `sleep`, and attempt 2 of the same job is stood by for."""

    def __init__(self, runs: Attempts, argv: list[str], modules: Modules = (("decimal", None),)) -> None:
        self.runs, self.argv, self.modules = runs, argv, modules
        self.cwd, self.env = "/", dict[str, str]()
        self.resumed_argv: list[str] | None = None
        self.remedies: Mapping[str, object] = {}
        self.alone_s = 900.0
        self.before = runs.launch(SLEEPING)
        self.attempt = runs.state / "jobs" / "job" / "2"
        runs.folders.append(self.attempt)

    def composed(self, resume_from: str | None = None) -> dict[str, str]:
        return attempts.compose_env(
            job="job",
            number=2,
            folder=self.attempt,
            env=self.env,
            inherited=os.environ,
            agent=INSTALLED.agent,
            conv2d="off",
            agent_settings={},
            resume_from=resume_from,
            snapshot_every="0",
            mean_fault_s=1.0,
        )

    def begin(self, *, ready: bool = True) -> None:
        """Start what stands by; wait until it is ready or has refused."""
        wanted = standby.Wanted(
            number=2,
            argv=self.argv,
            cwd=self.cwd,
            env=self.composed(),
            remedies=self.remedies,
            modules=self.modules,
            alone_s=self.alone_s,
        )
        standby.prepare(self.runs.state, "job", wanted, self.before, None)
        try:
            self.runs.launcher.stand_by("job", self.attempt)
        except LaunchError:  # it can refuse before it is seen to stand by
            if ready:
                raise
        until(lambda: standby.was_ready(self.attempt) or standby.refused(self.attempt), "the standby")
        assert standby.was_ready(self.attempt) == ready, standby.refused(self.attempt)

    def end_before(self) -> None:
        self.runs.signal(self.before, names.SHIM_KILL)
        self.runs.exit(self.before)
        until(lambda: not self.runs.launcher.alive("job", self.before), "the end of the attempt before")

    def prepare(self, **others: object) -> Path:
        """Prepare attempt 2, `others` in place of what stands by for it."""
        given: dict[str, object] = {
            "argv": self.resumed_argv or self.argv,
            "cwd": self.cwd,
            "env": self.composed("/some/where.pt"),
            "grace_s": 1,
            "save_s": 5,
            "group": None,
            "remedies": self.remedies,
            **others,
        }
        return attempts.prepare(self.runs.state, "job", 2, **given)  # type: ignore[arg-type]  # a test's words

    def go(self, **others: object) -> str | None:
        """End attempt 1 and have the second be what stands by; return why it is not."""
        self.end_before()
        self.prepare(**others)
        return standby.go(self.attempt)

    def prepare_cold(self) -> Path:
        """Prepare attempt 3, launched as the second was."""
        env = {name: text.replace("/job/2", "/job/3") for name, text in self.composed("/some/where.pt").items()}
        folder = attempts.prepare(
            self.runs.state, "job", 3, argv=self.argv, cwd=self.cwd, env=env, grace_s=1, save_s=5, group=None
        )
        self.runs.folders.append(folder)
        return folder

    def output(self) -> str:
        """Return what the attempt printed, once its shim is gone as well and another one can be launched."""
        self.runs.exit(self.attempt)
        until(lambda: not self.runs.launcher.alive("job", self.attempt), "the end of its shim")
        return (self.attempt / names.OUTPUT).read_text()

    @property
    def shim(self) -> int:
        """The pid of the shim that waits."""
        found = [
            int(path.name)
            for path in Path("/proc").iterdir()
            if path.name.isdigit() and str(standby.folder_of(self.attempt)) in _words(path)
        ]
        assert len(found) == 1
        return found[0]

    @property
    def interpreter(self) -> int:
        """The pid of the interpreter that stands by."""
        (child,) = Path(f"/proc/{self.shim}/task/{self.shim}/children").read_text().split()
        return int(child)

    def nothing_waits(self) -> bool:
        return not any(
            str(standby.folder_of(self.attempt)) in _words(path)
            for path in Path("/proc").iterdir()
            if path.name.isdigit() and (process := read_process(int(path.name))) and not process.dead
        )


def _words(process: Path) -> list[str]:
    try:
        return process.joinpath("cmdline").read_text().split("\0")
    except OSError:
        return []


def report(text: str) -> dict[str, object]:
    """Return what REPORT printed."""
    found = json.loads(text.strip().splitlines()[-1])
    assert isinstance(found, dict)
    return found


__all__ = ["NOW", "REPORT", "SLEEPING", "Standing", "report"]
