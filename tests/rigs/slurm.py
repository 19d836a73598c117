"""A real Slurm of several nodes on this machine: slurmctld, munged, and one slurmd in namespaces of its own for each.

A node has its own network, host name and processes: killing it ends all of them, as when a machine loses its power. As
root; nothing of it is a service of the machine, and nothing is left of it.
"""

from __future__ import annotations

import itertools
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

PROGRAMS = ("slurmctld", "slurmd", "munged", "sbatch", "scontrol", "ip", "unshare")
START_LIMIT_S = 60.0
CONTROLLER, NETWORK = "10.79.0.1", "10.79"
CONFIGURATION = """\
ClusterName=rig
SlurmctldHost=controller({controller})
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={sockets}/munge.socket,cred_expire=10
StateSaveLocation={folder}/state
SlurmdSpoolDir={sockets}/spool.%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.%n.log
SlurmctldTimeout=60
SlurmdTimeout=300
KillWait=2
MessageTimeout=5
ReturnToService=2
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SelectType=select/linear
PropagateResourceLimits=NONE
SlurmdParameters=config_overrides
SchedulerParameters=sched_interval=1,sched_min_interval=100000,batch_sched_delay=0
{nodes}
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""
NODE = """
hostname "$1"
ip link set lo up
exec slurmd -D -f "$2"
"""


def missing() -> str | None:
    """Return why no Slurm can be started here, None where one can."""
    if os.geteuid() != 0:
        return "Slurm's nodes need namespaces of their own: only root can make them"
    absent = [name for name in PROGRAMS if shutil.which(name) is None]
    return f"not installed: {', '.join(absent)} (Debian: slurmctld, slurmd, slurm-client, munge)" if absent else None


class Slurm:
    """The cluster; `environment` is that of a user's commands."""

    def __init__(self, folder: Path, sockets: Path, nodes: int) -> None:
        """`sockets` is a folder with a short name: that of a socket has 108 characters at most."""
        self.folder, self._sockets = folder, sockets
        self.names = [f"node{number}" for number in range(1, nodes + 1)]
        self._bridge, self._namespaces = f"sl{os.getpid()}", {name: f"sl{os.getpid()}{name}" for name in self.names}
        self.environment = {**os.environ, "SLURM_CONF": str(folder / "slurm.conf")}
        self._processes: list[subprocess.Popen[bytes]] = []
        self._nodes: dict[str, subprocess.Popen[bytes]] = {}

    def start(self) -> None:
        """Start everything; return once every node is idle."""
        self._write_configuration()
        self._make_network()
        self._start_munge()
        script = 'hostname controller; exec slurmctld -D -i -f "$1"'
        self._start("controller", "unshare", "--uts", "sh", "-c", script, "sh", str(self.folder / "slurm.conf"))
        # A slurmd that has no answer asks again after ten seconds.
        self.await_condition(self.states, "the controller's answer")
        for name in self.names:
            words = ["ip", "netns", "exec", self._namespaces[name], "unshare", "--uts", "--pid", "--mount-proc"]
            inner = ["--kill-child", "--fork", "sh", "-c", NODE, "sh", name, str(self.folder / "slurm.conf")]
            self._nodes[name] = self._start(name, *words, *inner)
        self.await_condition(lambda: self.states() == dict.fromkeys(self.names, "idle"), "nodes that are idle")

    def end(self) -> None:
        """End every process of it."""
        for process in (*self._nodes.values(), *reversed(self._processes)):
            process.kill()
            process.wait()
        for number, namespace in enumerate(self._namespaces.values(), start=1):
            # Else the kernel removes it with its namespace, which is later than the next cluster makes the same.
            link = ("ip", "link", "del", f"{self._bridge}v{number}")
            subprocess.run(link, check=False, capture_output=True)
            subprocess.run(("ip", "netns", "del", namespace), check=False, capture_output=True)
            shutil.rmtree(Path("/etc/netns") / namespace, ignore_errors=True)
        subprocess.run(("ip", "link", "del", self._bridge), check=False, capture_output=True)

    def kill_node(self, name: str) -> None:
        """End every process of a node at once."""
        node = self._nodes.pop(name)
        node.send_signal(signal.SIGKILL)
        node.wait()

    def cut_node(self, name: str) -> None:
        """Take the link of a node down: its processes go on."""
        run("ip", "link", "set", f"{self._bridge}v{self.names.index(name) + 1}", "down")

    def states(self) -> Mapping[str, str]:
        """Return the state of each node; {} while the controller does not answer."""
        shown = self.run("sinfo", "--noheader", "--Node", "--format=%N %T")
        return dict(line.split() for line in shown.stdout.splitlines()) if shown.returncode == 0 else {}

    def job(self, number: str) -> Mapping[str, str]:
        """Return what the controller says of a job."""
        shown = self.run("scontrol", "--oneliner", "show", "job", number)
        return dict(word.partition("=")[::2] for word in shown.stdout.split())

    def run(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Run a command as a user does."""
        return subprocess.run(words, env=self.environment, text=True, capture_output=True, timeout=60, check=False)

    def await_condition(self, condition: Callable[[], object], what: str) -> None:
        """Wait for a condition; fail where it does not come true in time."""
        deadline = time.perf_counter() + START_LIMIT_S
        while not condition():
            assert time.perf_counter() < deadline, f"not within {START_LIMIT_S:.0f} s: {what}\n{self.logs()}"
            time.sleep(0.1)

    def logs(self) -> str:
        """Return the end of each log."""
        return "\n".join(f"{path.name}: {path.read_text()[-1000:]}" for path in sorted(self.folder.glob("*.log")))

    def _start(self, name: str, *words: str) -> subprocess.Popen[bytes]:
        with (self.folder / f"{name}.out.log").open("ab") as log:
            process = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=self.environment)
        if name not in self.names:
            self._processes.append(process)
        return process

    def _write_configuration(self) -> None:
        numbered = zip(self.names, itertools.count(1), strict=False)
        lines = (f"NodeName={name} NodeAddr={NETWORK}.1.{number} CPUs=1 State=UNKNOWN" for name, number in numbered)
        text = CONFIGURATION.format(
            controller=CONTROLLER, folder=self.folder, sockets=self._sockets, nodes="\n".join(lines)
        )
        (self.folder / "slurm.conf").write_text(text)
        # Without a file of its own slurmd takes the cgroup plugin of the machine's systemd, which may not be there.
        (self.folder / "cgroup.conf").write_text("CgroupPlugin=cgroup/v1\n")
        (self.folder / "state").mkdir()

    def _make_network(self) -> None:
        run("ip", "link", "add", self._bridge, "type", "bridge")
        run("ip", "addr", "add", f"{CONTROLLER}/16", "dev", self._bridge)
        run("ip", "link", "set", self._bridge, "up")
        hosts = "".join(f"{NETWORK}.1.{number} {name}\n" for number, name in enumerate(self.names, start=1))
        for number, namespace in enumerate(self._namespaces.values(), start=1):
            etc = Path("/etc/netns") / namespace
            etc.mkdir(parents=True)
            (etc / "hosts").write_text(f"127.0.0.1 localhost\n{CONTROLLER} controller\n{hosts}")
            (etc / "resolv.conf").write_text("nameserver 127.0.0.1\noptions timeout:1 attempts:1\n")
            link = f"{self._bridge}v{number}"
            run("ip", "netns", "add", namespace)
            run("ip", "link", "add", link, "type", "veth", "peer", "name", "eth0", "netns", namespace)
            run("ip", "link", "set", link, "master", self._bridge, "up")
            run("ip", "-n", namespace, "addr", "add", f"{NETWORK}.1.{number}/16", "dev", "eth0")
            run("ip", "-n", namespace, "link", "set", "eth0", "up")

    def _start_munge(self) -> None:
        key = self.folder / "munge.key"
        key.write_bytes(os.urandom(128))
        key.chmod(0o600)
        files = [f"--{kind}-file={self.folder}/munge.{kind}" for kind in ("key", "pid", "log", "seed")]
        self._start("munge", "munged", "--foreground", "--force", f"--socket={self._sockets}/munge.socket", *files)
        self.await_condition((self._sockets / "munge.socket").exists, "munged's socket")


def run(*words: str) -> None:
    """Run a command that must succeed."""
    subprocess.run(words, check=True, capture_output=True)


@contextmanager
def slurm(folder: Path, nodes: int) -> Iterator[Slurm]:
    """Run a cluster."""
    with tempfile.TemporaryDirectory(prefix="slurm-", ignore_cleanup_errors=True) as sockets:
        cluster = Slurm(folder, Path(sockets), nodes)
        try:
            cluster.start()
            yield cluster
        finally:
            cluster.end()
