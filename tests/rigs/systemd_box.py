"""A real systemd as PID 1 of namespaces of its own, on a private copy-on-write root; it never touches the real root.

    with SystemdBox(keep=[tmp_path]) as box:
        box.run("systemctl start something.service", check=True)

Everything written inside is thrown away, except below the `keep` directories. /sys and /proc/sys are read-only inside,
/dev holds the few nodes that programs expect (and the real /dev/kmsg), the network is the machine's. The journal and
the bus run there; polkit, logind and a user's systemd come on demand. Boots in a third of a second; needs root and
overlayfs.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

SYSTEMD = Path("/usr/lib/systemd/systemd")
TOOLS = ("unshare", "nsenter", "pivot_root", "mount", "runuser")
OWN_PLACES = ("/run", "/tmp", "/dev")
"""Where a box has an empty file system of its own."""
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

# What a machine does to its hardware and its clock while it boots is no business of a box.
MASKED = (
    "cryptsetup.target dev-hugepages.mount integritysetup.target kmod-static-nodes.service "
    "proc-sys-fs-binfmt_misc.automount sys-fs-fuse-connections.mount sys-kernel-config.mount sys-kernel-debug.mount "
    "sys-kernel-tracing.mount systemd-binfmt.service systemd-firstboot.service systemd-machine-id-commit.service "
    "systemd-modules-load.service systemd-pcrphase-sysinit.service systemd-pcrphase.service systemd-pstore.service "
    "systemd-random-seed.service systemd-remount-fs.service systemd-repart.service systemd-sysctl.service "
    "systemd-timesyncd.service systemd-tmpfiles-setup-dev.service systemd-update-utmp.service systemd-udevd.service "
    "systemd-journal-flush.service systemd-journald-audit.socket veritysetup.target"
)

TARGET = """\
[Unit]
Description=A system with nothing but journal and bus
Requires=sysinit.target systemd-journald.service dbus.socket
After=sysinit.target systemd-journald.service dbus.socket
AllowIsolate=yes
"""

# $1: a directory of the real root, $2: the box's own cgroup; then triples MODE OUTSIDE INSIDE, shown inside.
INIT = r"""
box=$1; echo $$ >"$2/cgroup.procs"; shift 2
exec unshare --cgroup --mount --pid --uts --ipc --fork --kill-child bash -euc '
box=$1; shift
mount --make-rprivate /
mount -t tmpfs -o mode=755 tmpfs "$box"
mkdir "$box/up" "$box/work" "$box/root"
mount -t overlay overlay -o "lowerdir=$BOX_LOWER,upperdir=$box/up,workdir=$box/work" "$box/root"
cd "$box/root"
for unit in $BOX_MASKED; do ln -sfn /dev/null "etc/systemd/system/$unit"; done
printf %s "$BOX_TARGET" >etc/systemd/system/box.target
mount -t tmpfs -o mode=755 tmpfs run
mount -t tmpfs -o mode=1777 tmpfs tmp
mount -t tmpfs -o mode=755 tmpfs dev
mkdir dev/pts dev/shm
mount -t devpts -o newinstance,ptmxmode=0666,mode=620,gid=5 devpts dev/pts
mount -t tmpfs -o mode=1777 tmpfs dev/shm
ln -s pts/ptmx dev/ptmx; ln -s /proc/self/fd dev/fd
ln -s fd/0 dev/stdin; ln -s fd/1 dev/stdout; ln -s fd/2 dev/stderr
for node in null zero full random urandom tty kmsg; do : >"dev/$node"; mount --bind "/dev/$node" "dev/$node"; done
while [ $# -ge 3 ]; do
  mkdir -p ".$3"; mount --bind "$2" ".$3"
  if [ "$1" = ro ]; then mount -o remount,bind,ro ".$3"; fi
  shift 3
done
mount -t proc proc proc
mount --bind proc/sys proc/sys; mount -o remount,bind,ro proc/sys
mount -t sysfs -o ro sysfs sys
mount -t cgroup2 cgroup2 sys/fs/cgroup
mkdir run/outside; pivot_root . run/outside; cd /; umount -l run/outside; rmdir run/outside
unset BOX_MASKED BOX_TARGET BOX_LOWER; export container=systemd-nspawn
exec /usr/lib/systemd/systemd --system --unit=box.target --log-target=journal --show-status=0
' init "$box" "$@"
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Completed:
    """How a command in the box ended; `output` is stdout and stderr together."""

    command: str
    status: int
    output: str

    @property
    def ok(self) -> bool:
        """Whether it ended with status 0."""
        return self.status == 0


class BoxError(RuntimeError):
    """The box did not boot, a command ran past its time, or one that had to succeed failed."""


def unavailable() -> str | None:
    """Return why no box can boot here, or None when one can."""
    if os.geteuid() != 0:
        return "booting a systemd in namespaces needs root"
    if not SYSTEMD.exists():
        return f"no {SYSTEMD}"
    missing = [tool for tool in TOOLS if shutil.which(tool) is None]
    if missing:
        return f"not installed: {', '.join(missing)}"
    if "overlay" not in Path("/proc/filesystems").read_text() or _cgroup2() is None:
        return "the kernel offers no overlayfs or no cgroup2"
    return None


def _cgroup2() -> Path | None:
    mounts = (line.split() for line in Path("/proc/mounts").read_text().splitlines())
    return next((Path(at) for _, at, kind, *_ in mounts if kind == "cgroup2"), None)


class SystemdBox:
    """A booted systemd; leaving the context kills everything that runs inside.

    `keep` are directories of the machine shown and written through, at their place or the one they are mapped to;
    `show` maps others to the place where they are shown read-only. What lies on the root file system is there anyway,
    to be read, and to be written for the box alone. `boot_s` bounds the boot; `root` is another system to boot, with a
    systemd and a bus.
    """

    def __init__(
        self,
        *,
        keep: Iterable[Path] | Mapping[Path, str] = (),
        show: Mapping[Path, str] | None = None,
        boot_s: float = 120.0,
        root: Path = Path("/"),
    ) -> None:
        self._root = root
        kept = keep if isinstance(keep, Mapping) else {path: str(path.resolve()) for path in keep}
        self._shown = [word for path, inside in kept.items() for word in ("rw", str(path.resolve()), inside)]
        self._shown += [word for path, inside in (show or {}).items() for word in ("ro", str(path.resolve()), inside)]
        self._boot_s = boot_s
        self._unshare: subprocess.Popen[bytes] | None = None
        self.init_pid = 0

    def __enter__(self) -> SystemdBox:
        reason = unavailable()
        if reason:
            raise BoxError(reason)
        cgroup2 = _cgroup2()
        assert cgroup2 is not None, "unavailable() has looked"
        self._folder = Path(tempfile.mkdtemp(prefix="systemd-box.", dir="/var/tmp"))
        self._cgroup = Path(tempfile.mkdtemp(prefix="systemd-box.", dir=cgroup2))
        self._cgroup.chmod(0o755)  # it is the root of the box's own tree
        self._log = tempfile.TemporaryFile()
        try:
            self._boot()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def run(
        self,
        command: str,
        *,
        timeout_s: float = 120.0,
        user: str | None = None,
        environment: Mapping[str, str] | None = None,
        stdin: str = "",
        check: bool = False,
    ) -> Completed:
        """Run `command` by bash inside, as root or `user`; with `check`, a status other than 0 raises BoxError.

        A command that runs past `timeout_s` is killed and raises BoxError with what it had said.
        """
        as_user = ["runuser", "-u", user, "--"] if user else []
        argv = [*self._enter(), *as_user, "bash", "-c", command]
        variables = {"PATH": PATH, "LANG": "C.UTF-8", "HOME": "/", "SYSTEMD_COLORS": "0", "SYSTEMD_PAGER": ""}
        process = subprocess.Popen(
            argv,
            env=variables | dict(environment or {}),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            report, _ = process.communicate(stdin.encode(), timeout=timeout_s)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            report, _ = process.communicate()
            raise BoxError(f"{command!r} ran past {timeout_s} s:\n{report.decode(errors='replace')}") from None
        done = Completed(command=command, status=process.returncode, output=report.decode(errors="replace"))
        if check and not done.ok:
            raise BoxError(f"{command!r} ended with status {done.status}:\n{done.output}")
        return done

    def begin(self, argv: Sequence[str], *, user: str) -> subprocess.Popen[bytes]:
        """Start a program inside as `user` that goes on, with pipes to its standard input and output."""
        return subprocess.Popen(
            [*self._enter(), "runuser", "-u", user, "--", *argv],
            env={"PATH": PATH, "LANG": "C.UTF-8", "HOME": "/"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )

    def write(self, path: str, text: str, mode: int = 0o644) -> None:
        """Write a file inside, with its directories."""
        quoted = shlex.quote(path)
        self.run(f"mkdir -p $(dirname {quoted}); cat >{quoted}; chmod {mode:o} {quoted}", stdin=text, check=True)

    def read(self, path: str) -> str:
        """Return the text of a file inside."""
        return self.run(f"cat {shlex.quote(path)}", check=True).output

    def until(self, command: str, *, timeout_s: float = 60.0) -> Completed:
        """Run `command` again and again until it ends with status 0; raise BoxError when it has not by then."""
        began = time.perf_counter()
        while True:
            done = self.run(command, timeout_s=timeout_s)
            if done.ok:
                return done
            waited_s = time.perf_counter() - began
            if waited_s > timeout_s:
                raise BoxError(f"not within {timeout_s} s: {command!r}; the last answer:\n{done.output}")
            time.sleep(min(0.5, max(0.1, waited_s / 5)))  # each question is processes of its own

    def goes_down(self, command: str = "systemctl reboot", *, timeout_s: float = 60.0) -> None:
        """Run a command that ends the whole box (reboot, poweroff) and wait until nothing of it is left."""
        assert self._unshare is not None, "not booted"
        with contextlib.suppress(BoxError):
            self.run(command, timeout_s=timeout_s)  # it may be gone before it can answer
        try:
            self._unshare.wait(timeout_s)
        except subprocess.TimeoutExpired:
            raise BoxError(f"still up {timeout_s} s after {command!r}") from None

    def close(self) -> None:
        """Kill what runs inside and remove what the box needed outside."""
        if self._unshare is not None:
            if self._unshare.poll() is None and self.init_pid:
                os.kill(self.init_pid, signal.SIGKILL)  # the kernel takes all of its namespace with it
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._unshare.wait(5)
            self._unshare.kill()  # --kill-child, should there have been no PID 1 yet
            self._unshare.wait()
            self._unshare = None
        self._log.close()
        self._remove_cgroup()
        with contextlib.suppress(OSError):
            self._folder.rmdir()  # empty: everything lay on a tmpfs of the box's own

    def _enter(self) -> list[str]:
        target = str(self.init_pid)
        return ["nsenter", "-t", target, "-m", "-u", "-i", "-p", "-C", "-r", "-w"]

    def _boot(self) -> None:
        self._unshare = subprocess.Popen(
            ["bash", "-euc", INIT, "box", str(self._folder), str(self._cgroup), *self._shown],
            env={
                "PATH": PATH,
                "LANG": "C.UTF-8",
                "BOX_MASKED": MASKED,
                "BOX_TARGET": TARGET,
                "BOX_LOWER": str(self._root),
            },
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=self._log,
            start_new_session=True,
        )
        self._wait(self._has_init, "it started no PID 1")
        self._wait(self._is_up, "its systemd did not come up")

    def _wait(self, condition: Callable[[], bool], complaint: str) -> None:
        deadline = time.perf_counter() + self._boot_s
        assert self._unshare is not None, "not started"
        while not condition():
            if self._unshare.poll() is not None or time.perf_counter() > deadline:
                self._log.seek(0)
                raise BoxError(f"{complaint}: {self._log.read().decode(errors='replace')}")
            time.sleep(0.02)

    def _has_init(self) -> bool:
        assert self._unshare is not None, "not started"
        children = Path(f"/proc/{self._unshare.pid}/task/{self._unshare.pid}/children").read_text().split()
        if not children:
            return False
        self.init_pid = int(children[0])
        with contextlib.suppress(OSError):
            return Path(f"/proc/{self.init_pid}/comm").read_text().strip() == "systemd"
        return False

    def _is_up(self) -> bool:
        state = self.run("systemctl is-system-running", timeout_s=self._boot_s).output.strip()
        return state in {"running", "degraded"}

    def _remove_cgroup(self) -> None:
        for folder, _, _ in os.walk(self._cgroup, topdown=False):
            for _ in range(100):  # a killed process leaves its cgroup a moment after it was reaped
                try:
                    Path(folder).rmdir()
                    break
                except OSError:
                    time.sleep(0.02)
