"""Checks each device of this machine: matrix products against float64, memory, and an all-reduce in pairs.

    python check_node.py '{"device": "auto", "seconds": 12, "mib": 256, "size": 0}'

Needs torch. Prints one JSON object a line: kind "begin" before each check and "row" after it, or "refused" and
status 2.
What is the same sum twice has to be the same bits twice: a device that answers otherwise computes wrongly now and then.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
from typing import Any, Callable, Dict, List

try:
    import torch
    from bench_ways import distance
except ImportError as error:
    text = f"{sys.executable} cannot import torch: {error}"
    sys.stdout.write(json.dumps({"kind": "refused", "message": text}) + "\n")
    sys.exit(2)

BOUNDS = {"float32": 2e-5, "bfloat16": 6e-2}
"""Largest distance to float64, relative to its norm, that is right."""
CHECKED_ROWS = 64
PATTERNS = (0x00, 0xFF, 0x55, 0xAA)
WRONG_NAMED = 3
PAIR_LIMIT_S = 15.0


def say(kind: str, **facts: Any) -> None:
    """Print one line of the report."""
    sys.stdout.write(json.dumps({"kind": kind, **facts}) + "\n")
    sys.stdout.flush()


def list_devices(wanted: str) -> List[str]:
    """Return the devices to check; exit where GPUs are wanted and none is seen."""
    count = torch.cuda.device_count() if wanted != "cpu" and torch.cuda.is_available() else 0
    if wanted == "cuda" and not count:
        say("refused", message=f"torch {torch.__version__} sees no GPU")
        sys.exit(2)
    return [f"cuda:{index}" for index in range(count)] or ["cpu"]


def wait_for(device: str) -> None:
    """Wait until the device has done what it was given."""
    if device != "cpu":
        torch.cuda.synchronize(device)


def check(name: str, device: str, work: Callable[[], Dict[str, Any]]) -> None:
    """Print the row of one check; what the device refuses is a result too."""
    say("begin", check=name, device=device)
    began = time.perf_counter()
    try:
        facts = work()
    except Exception as error:
        facts = {"problem": f"{type(error).__name__}: {error}".strip().splitlines()[0][:300]}
    say("row", check=name, device=device, took_s=time.perf_counter() - began, **facts)


def check_gemm(device: str, name: str, side: int, seconds: float) -> Dict[str, Any]:
    """Multiply the same matrices again and again: right against float64, and the same bits each time."""
    generator = torch.Generator().manual_seed(5)
    dtype = getattr(torch, name)
    a, b = (torch.randn(side, side, generator=generator).to(dtype) for _ in range(2))
    exact = a[:CHECKED_ROWS].double() @ b.double()
    a, b = a.to(device), b.to(device)
    first = a @ b
    wait_for(device)
    error = distance(first[:CHECKED_ROWS].cpu(), exact)
    if not error <= BOUNDS[name]:
        return {"problem": f"its products are {error:.1e} from those in float64, limit {BOUNDS[name]:.0e}"}
    taken: List[float] = []
    until = time.perf_counter() + seconds
    while not taken or time.perf_counter() < until:
        began = time.perf_counter()
        again = a @ b
        wait_for(device)
        taken.append(time.perf_counter() - began)
        if not torch.equal(again, first):
            wrong = int((again != first).sum())
            return {"problem": f"product {len(taken) + 1} of the same matrices differs in {wrong} numbers"}
    rate = 2.0 * side**3 / sorted(taken)[len(taken) // 2] / 1e12
    return {"value": rate, "unit": "TFLOP/s", "times": len(taken) + 1, "error": error}


def check_memory(device: str, size: int) -> Dict[str, Any]:
    """Write patterns and random bytes, copy them on the device and back, and compare every byte."""
    generator = torch.Generator().manual_seed(7)
    noise = torch.randint(0, 256, (size,), dtype=torch.uint8, generator=generator)
    taken = []
    for number, host in enumerate([*(torch.full((size,), item, dtype=torch.uint8) for item in PATTERNS), noise]):
        there = host.to(device)
        other = torch.empty_like(there)
        wait_for(device)
        began = time.perf_counter()
        other.copy_(there)
        wait_for(device)
        taken.append(time.perf_counter() - began)
        back = other.to("cpu")
        if not torch.equal(back, host):
            places = (back != host).nonzero().flatten()
            shown = ", ".join(str(int(place)) for place in places[:WRONG_NAMED])
            return {"problem": f"pattern {number + 1}: {len(places)} of {size} bytes changed, first at {shown}"}
    return {"value": size / min(taken) / 1e9, "unit": "GB/s", "bytes": size * (len(PATTERNS) + 1)}


class Pair:
    """Two processes that have imported torch and sum over the devices that they are told."""

    def __init__(self) -> None:
        command = [sys.executable, os.path.abspath(__file__), json.dumps({"rank": True})]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        self._ranks = [subprocess.Popen(command, text=True, **pipes) for _ in range(2)]  # type: ignore[call-overload]

    def wait_until_ready(self) -> Dict[str, Any]:
        """Wait for both; on a busy machine importing torch may take longer than all that is checked."""
        for rank in self._ranks:
            rank.stdout.readline()
        return {}

    def sum_over(self, devices: List[str], size: int) -> Dict[str, Any]:
        """Sum over RCCL or NCCL with GPUs, over gloo on a CPU."""
        backend = "nccl" if devices[0] != "cpu" else "gloo"
        with tempfile.TemporaryDirectory() as folder:
            facts = {"backend": backend, "bytes": size, "meeting": folder + "/meeting"}
            for number, (rank, device) in enumerate(zip(self._ranks, devices)):
                rank.stdin.write(json.dumps({"rank": number, "device": device, **facts}) + "\n")
                rank.stdin.flush()
            timer = threading.Timer(PAIR_LIMIT_S, self.end)
            timer.start()
            answers = [rank.stdout.readline() for rank in self._ranks]
            hung = not timer.is_alive()
            timer.cancel()
        if hung:
            return {"problem": f"{backend} gave no sum within {PAIR_LIMIT_S:.0f} s: the collective hangs"}
        if not all(answers):
            self.end()
            last = [rank.stderr.read().strip().rpartition("\n")[2] for rank in self._ranks]
            return {"problem": f"{backend} failed: {next(filter(None, last), 'a process ended')[:200]}"}
        read = [json.loads(answer) for answer in answers]
        wrong = sum(answer["wrong"] for answer in read)
        if wrong:
            return {"problem": f"{wrong} numbers of the sum over {backend} are wrong"}
        return {"value": min(answer["value"] for answer in read), "unit": "GB/s", "backend": backend}

    def end(self) -> None:
        """End both."""
        for rank in self._ranks:
            rank.kill()


def be_a_rank() -> None:
    """Be one of the two processes."""
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    for line in sys.stdin:
        reduce_as_rank(json.loads(line))


def reduce_as_rank(given: Dict[str, Any]) -> None:
    """Sum once, as one of two."""
    import torch.distributed as dist  # noqa: PLC0415 - in a rank only

    rank, device = given["rank"], given["device"]
    if any(
        name == "lo" for _, name in socket.if_nameindex()
    ):  # both are of this machine, whatever its name resolves to
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    if device != "cpu":
        torch.cuda.set_device(device)
    dist.init_process_group(given["backend"], init_method="file://" + given["meeting"], rank=rank, world_size=2)
    count = given["bytes"] // 4
    wanted = 3.0 * torch.arange(count, dtype=torch.float32).remainder_(1 << 20)
    taken, wrong = [], 0
    for _ in range(5):
        mine = (torch.arange(count, dtype=torch.float32).remainder_(1 << 20) * (rank + 1)).to(device)
        wait_for(device)
        began = time.perf_counter()
        dist.all_reduce(mine)
        wait_for(device)
        taken.append(time.perf_counter() - began)
        wrong += int((mine.cpu() != wanted).sum())
    sys.stdout.write(json.dumps({"value": given["bytes"] / min(taken) / 1e9, "wrong": wrong}) + "\n")
    sys.stdout.flush()
    dist.destroy_process_group()


def check_machine(given: Dict[str, Any]) -> None:
    """Check every device, then neighbours in pairs."""
    devices = list_devices(given["device"])
    name = torch.cuda.get_device_name(0) if devices[0] != "cpu" else f"CPU, {torch.get_num_threads()} threads"
    say("machine", devices=devices, name=name, torch=str(torch.__version__), hip=getattr(torch.version, "hip", None))
    side = given["size"] or (4096 if devices[0] != "cpu" else 256)
    pair = Pair()  # it imports torch while the devices are checked
    each_s = given["seconds"] / (len(devices) * len(BOUNDS))
    for device in devices:
        for kind in BOUNDS:
            check(f"gemm {kind}", device, lambda: check_gemm(device, kind, side, each_s))  # noqa: B023 - called at once
        check("memory", device, lambda: check_memory(device, given["mib"] << 20))  # noqa: B023 - the same
    if devices == ["cpu"]:
        pairs = [["cpu", "cpu"]]
    else:
        pairs = [devices[first : first + 2] for first in range(0, len(devices) - 1, 2)]
        if len(devices) > 1 and len(devices) % 2:
            pairs.append(devices[-2:])
    check("start", "two processes", pair.wait_until_ready)
    for two in pairs:
        check("all-reduce", "+".join(two), lambda: pair.sum_over(two, min(given["mib"], 64) << 20))  # noqa: B023 - the same
    pair.end()


if __name__ == "__main__":
    asked = json.loads(sys.argv[1])
    if "rank" in asked:
        be_a_rank()
    else:
        check_machine(asked)
