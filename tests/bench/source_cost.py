"""What the sources cost: sysfs, recorder, output, kernel log, and rocm-smi for comparison.

python tests/bench/source_cost.py        # root: also the real rocm-smi and the real /dev/kmsg
"""

from __future__ import annotations

import os
import select
import shutil
import sys
import tempfile
import time
import uuid
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).parents[2]
# The package of the same name that may be installed must not come first.
sys.path[:0] = [str(ROOT), str(ROOT / "tests/rigs"), str(ROOT / "tests/sources")]

from amdgpu_tree import AmdgpuTree  # noqa: E402 (after the path is set)
from recorder_by_hand import Writer  # noqa: E402

from supervisor.core.moments import Moment  # noqa: E402
from supervisor.sources.attempt.output import OutputReader  # noqa: E402
from supervisor.sources.attempt.recorder import RecorderReader  # noqa: E402
from supervisor.sources.gpu.amdgpu_sysfs import AmdgpuSysfs  # noqa: E402
from supervisor.sources.gpu.gpus import GpuWatch  # noqa: E402
from supervisor.sources.gpu.rocm_smi import RocmSmi  # noqa: E402
from supervisor.sources.host import HostWatch  # noqa: E402
from supervisor.sources.kernel.kmsg import KernelLog  # noqa: E402
from supervisor.sources.processes import TreeWatch  # noqa: E402

NOW = Moment(1000.0, 1_700_000_000.0)
BAR = (
    "\r\x1b[K      1/100       4.5G      1.161     0.3149      0.703          9        640: "
    "16% ━━────────── {n}/20582 18.1it/s 0.1s<2.3s"
)


def say(line: str) -> None:
    sys.stdout.write(f"{line}\n")


def each_us(work: Callable[[], object], rounds: int) -> float:
    """Return processor microseconds of this thread for one call, the best of five series."""
    best = float("inf")
    for _ in range(5):
        started = time.thread_time()
        for _ in range(rounds):
            work()
        best = min(best, time.thread_time() - started)
    return best / rounds * 1e6


def recorder(folder: Path) -> None:
    (folder / "run").mkdir()
    writer = Writer(folder / "run/recorder.bin", capacity=131072)
    for step in range(1, 20_001):
        writer.write(step)
    reader = RecorderReader(folder)
    say(f"recorder, nothing new          {each_us(lambda: reader.read(20_000, NOW), 2000):8.1f} us")
    say(f"recorder, 20 new steps         {each_us(lambda: reader.read(19_980, NOW), 500):8.1f} us")
    say(f"recorder, a record of 16384    {each_us(lambda: reader.read(0, NOW), 1) / 16384:8.2f} us")


def output(folder: Path, name: str, line: Callable[[int], str]) -> None:
    attempt = folder / name
    (attempt / "run").mkdir(parents=True)
    lines = b"".join(line(n).encode() for n in range(40_000))[: 1 << 20]
    reader, spent_s = OutputReader(attempt, 64 << 20), []
    for _ in range(5):
        with (attempt / "run/output.log").open("ab") as file:
            file.write(lines)
        started = time.thread_time()
        page = reader.read(NOW)
        spent_s.append(time.thread_time() - started)
        assert page.new_bytes == len(lines)
    say(f"output, {name:22s} {len(lines) / min(spent_s) / 1e6:8.1f} MB/s ({min(spent_s) * 1e3:.0f} ms a full read)")


def kernel_log() -> None:
    if os.geteuid() != 0:
        say("kernel log                     needs root")
        return
    log, mark = KernelLog(Path("/dev/kmsg"), True, None, None), uuid.uuid4().hex
    with Path("/dev/kmsg").open("w") as device:
        device.write(f"<3>amdgpu 0000:0a:00.0: amdgpu: GPU reset begin! bench {mark}\n")
    started = time.perf_counter()
    while time.perf_counter() - started < 5:
        select.select([log.fileno()], [], [], 1.0)
        report = log.read(Moment(time.clock_gettime(time.CLOCK_MONOTONIC), 0.0))
        if report and any(mark in finding.line for finding in report.findings):
            say(f"kernel log, line to finding    {(time.perf_counter() - started) * 1e3:8.3f} ms")
            break
    log.close()


def tool(tree: AmdgpuTree) -> None:
    if os.geteuid() != 0 or shutil.which("rocm-smi") is None:
        say("rocm-smi                       needs root and the tool")
        return
    source, before, started = RocmSmi(tree.command(["rocm-smi"])), os.times(), time.perf_counter()
    source.read(NOW)
    after, wall_s = os.times(), time.perf_counter() - started
    cpu_s = after.children_user + after.children_system - before.children_user - before.children_system
    say(f"rocm-smi, a process a reading  {cpu_s * 1e3:8.1f} ms CPU, {wall_s * 1e3:.0f} ms")


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        tree = AmdgpuTree.build(folder / "tree")
        source, watch = AmdgpuSysfs(tree.sys_root), GpuWatch(["sysfs"], sys_root=tree.sys_root)
        say(f"sysfs, one card whole          {each_us(lambda: source.read(NOW), 300) / 1e3:8.3f} ms CPU")
        started = time.process_time()
        for _ in range(500):
            watch.read(NOW)
        say(f"the same through GpuWatch      {(time.process_time() - started) / 500 * 1e3:8.3f} ms CPU")
        watch.close()
        tool(tree)
        recorder(folder)
        output(folder, "plain lines", lambda n: f"{n}: loss 0.123, a line as trainings print them, and more\n")
        output(folder, "progress frames", lambda n: BAR.format(n=n))
        kernel_log()
        host, processes = HostWatch((folder,)), TreeWatch(os.getpid())
        say(f"host                           {each_us(lambda: host.read(NOW), 100) / 1e3:8.3f} ms CPU")
        say(f"process tree, one process      {each_us(lambda: processes.read(NOW), 50) / 1e3:8.3f} ms CPU")


if __name__ == "__main__":
    main()
