"""What reading the machine costs, in processor time: one card by sysfs, eight cards with host and kernel log a second.

python tests/bench/telemetry_cost.py            # simulated cards; the driver's own work behind a real file is not in it
python tests/bench/telemetry_cost.py --real     # the cards of this machine, through /sys
"""

from __future__ import annotations

import argparse
import resource
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
# The package of the same name that may be installed must not come first.
sys.path[:0] = [str(ROOT), str(ROOT / "tests/rigs")]

from amdgpu_tree import AmdgpuTree, rx7900xt  # noqa: E402 (after the path is set)

from supervisor.core.moments import Moment  # noqa: E402
from supervisor.sources.gpu.amdgpu_sysfs import AmdgpuSysfs  # noqa: E402
from supervisor.sources.gpu.gpus import GpuWatch  # noqa: E402
from supervisor.sources.gpu.rocm_smi import FLAGS  # noqa: E402
from supervisor.sources.gpu.tool import Tool  # noqa: E402
from supervisor.sources.host import HostWatch  # noqa: E402
from supervisor.sources.kernel.kmsg import KernelLog  # noqa: E402

CARD_LIMIT_MS = 0.3
MACHINE_LIMIT_PERCENT = 1.0


def main() -> int:
    """Print the figures; end with 1 where one is over its limit."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--real", action="store_true")
    real = parser.parse_args().real
    with tempfile.TemporaryDirectory() as folder:
        cards = [rx7900xt(f"0000:{3 + place:02x}:00.0", place) for place in range(8)]
        tree = AmdgpuTree.build(Path(folder) / "tree", *cards)
        sys_root = Path("/sys") if real else tree.sys_root
        card_ms, machine_percent = one_card_ms(sys_root), machine_share(sys_root)
        say("one complete reading of a card by sysfs", f"{card_ms:.3f} ms of CPU", f"<= {CARD_LIMIT_MS} ms")
        say(
            "8 cards, host and kernel log at 1 Hz",
            f"{machine_percent:.2f} % of a core",
            f"<= {MACHINE_LIMIT_PERCENT} %",
        )
        if shutil.which("rocm-smi"):
            tool_ms = children_ms(lambda: Tool(tree.command(["rocm-smi"]), 60.0).run(*FLAGS), 3)
            say(
                "for comparison, one process of rocm-smi",
                f"{tool_ms / 8:.1f} ms of CPU a card",
                f"{tool_ms:.0f} ms in all",
            )
    return int(card_ms > CARD_LIMIT_MS or machine_percent > MACHINE_LIMIT_PERCENT)


def one_card_ms(sys_root: Path, rounds: int = 300) -> float:
    """Return the processor time of one reading, divided by the cards; discovery and slow values have their share."""
    source, start = AmdgpuSysfs(sys_root), Moment(0.0, 0.0)
    cards = len(source.read(start))
    began = time.process_time()
    for second in range(1, rounds + 1):
        source.read(start.plus(second))
    source.close()
    return (time.process_time() - began) * 1e3 / rounds / cards


def machine_share(sys_root: Path, rounds: int = 120) -> float:
    """Return the percentage of a core that a round a second takes: cards behind their fences, host, kernel log."""
    watch, host, start = GpuWatch(["sysfs"], sys_root), HostWatch([ROOT]), Moment(0.0, 0.0)
    kernel = KernelLog(Path("/dev/kmsg"), False, None, None)
    watch.read(start)
    began = time.process_time()
    for second in range(1, rounds + 1):
        now = start.plus(second)
        watch.read(now)
        host.read(now)
        kernel.read(now)
    used_s = time.process_time() - began
    watch.close()
    kernel.close()
    return 100 * used_s / rounds


def children_ms(run: Callable[[], object], rounds: int) -> float:
    """Return the processor time that child processes take for one call."""
    before = _children_s()
    for _ in range(rounds):
        run()
    return (_children_s() - before) * 1e3 / rounds


def _children_s() -> float:

    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def say(what: str, figure: str, limit: str) -> None:
    """Print one figure."""
    sys.stdout.write(f"{what:<44} {figure:<24} {limit}\n")


if __name__ == "__main__":
    sys.exit(main())
