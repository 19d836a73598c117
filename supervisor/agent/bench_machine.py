"""Times and checks matrix products, attention, copies and an all-reduce in this interpreter.

    python bench_machine.py '{"benches": ["gemm"], "device": "auto", ...}'

Needs torch. Prints one JSON object a line: kind "device", then "row" for each measurement, or "refused" and status 2.
Results of arithmetic are compared with the same in float64.
"""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any, Callable, Dict, List

try:
    import torch
    from bench_ways import distance
except ImportError as error:
    text, remedy = f"{sys.executable} cannot import torch: {error}", "name a training's interpreter: --python PATH"
    sys.stdout.write(json.dumps({"kind": "refused", "message": text, "remedy": remedy}) + "\n")
    sys.exit(2)

BOUNDS = {"float32": 2e-5, "tf32": 3e-3, "float16": 1e-2, "bfloat16": 6e-2}
"""Largest distance to float64, relative to its norm, that is right."""
BUCKET_BYTES = {"host": 8 << 20, "host-bf16": 8 << 20}
DDP_BUCKET_BYTES = 25 << 20
"""Where the agent asks for none of another size."""
BACKWARD_SHARE = 0.6
"""Of a step, from the first gradients of a backward pass on."""
REDUCED = 7
CURES = {
    "nccl, no direct transfers": {"NCCL_P2P_DISABLE": "1"},
    "nccl, simple protocol": {"NCCL_PROTO": "Simple"},
}
"""What lets RCCL run on some machines where it hangs: ROCm/vllm#390, ROCm/rocm-systems#5480."""
LEAST_S = 0.2
RUNS_LIMIT = 200
CHECKED_ROWS = 64


def say(kind: str, **facts: Any) -> None:
    """Print one line of the report."""
    sys.stdout.write(json.dumps({"kind": kind, **facts}) + "\n")
    sys.stdout.flush()


class Bench:
    """One device, and what was asked for."""

    def __init__(self, given: Dict[str, Any]) -> None:
        self.given = given
        self.bench = ""
        seen = torch.cuda.is_available()
        self.device = given["device"] if given["device"] != "auto" else "cuda" if seen else "cpu"
        if self.device == "cuda" and not seen:
            raise SystemExit(f"torch {torch.__version__} sees no GPU")
        name = torch.cuda.get_device_name(0) if self.device == "cuda" else f"CPU, {torch.get_num_threads()} threads"
        hip = getattr(torch.version, "hip", None)
        say("device", device=self.device, name=name, torch=str(torch.__version__), hip=hip)

    def wait(self) -> None:
        """Wait for the GPU."""
        if self.device == "cuda":
            torch.cuda.synchronize()

    def median_ms(self, work: Callable[[], Any]) -> float:
        """Return the median time of `work`, over a fifth of a second and three runs at least."""
        for _ in range(2):
            work()
        self.wait()
        taken: List[float] = []
        until = time.perf_counter() + LEAST_S
        while len(taken) < 3 or (time.perf_counter() < until and len(taken) < RUNS_LIMIT):
            began = time.perf_counter()
            work()
            self.wait()
            taken.append((time.perf_counter() - began) * 1e3)
        return sorted(taken)[len(taken) // 2]

    def report(self, name: str, work: Callable[[], Dict[str, Any]]) -> None:
        """Print a row; one that fails is a result too."""
        try:
            facts = work()
        except Exception as error:  # a dtype or a kernel that the device lacks, or its memory
            facts = {"problem": f"{type(error).__name__}: {error}".strip().splitlines()[0][:200]}
        say("row", bench=self.bench, name=name, **facts)


def bench_gemm(bench: Bench) -> None:
    """Matrix products by type."""
    side = bench.given["size"] or (4096 if bench.device == "cuda" else 512)
    names = ["float32", "float16", "bfloat16"]
    if bench.device == "cuda" and getattr(torch.version, "hip", None) is None:
        names.insert(1, "tf32")
    for name in names:
        bench.report(name, lambda: _time_product(bench, name, side))  # noqa: B023 - called at once


def _time_product(bench: Bench, name: str, side: int) -> Dict[str, Any]:
    dtype = torch.float32 if name == "tf32" else getattr(torch, name)
    torch.backends.cuda.matmul.allow_tf32 = name == "tf32"
    try:
        generator = torch.Generator().manual_seed(5)
        a, b = (torch.randn(side, side, generator=generator).to(dtype).to(bench.device) for _ in range(2))
        ms = bench.median_ms(lambda: a @ b)
        exact = a[:CHECKED_ROWS].double().cpu() @ b.double().cpu()
        error = distance((a @ b)[:CHECKED_ROWS].cpu(), exact)
    finally:
        torch.backends.cuda.matmul.allow_tf32 = False
    rate = 2.0 * side**3 / ms / 1e9
    return {"ms": ms, "value": rate, "unit": "TFLOP/s", "error": error, "right": error <= BOUNDS[name], "size": side}


def bench_attention(bench: Bench) -> None:
    """Attention by kernel, forward and backward pass."""
    given = bench.given
    length = given["length"] or (2048 if bench.device == "cuda" else 256)
    shape = (given["batch"], given["heads"], length, given["head_size"])
    dtype = torch.bfloat16 if given["dtype"] == "auto" and bench.device == "cuda" else torch.float32
    dtype = getattr(torch, given["dtype"]) if given["dtype"] != "auto" else dtype
    generator = torch.Generator().manual_seed(7)
    made = [torch.randn(shape, generator=generator).to(dtype).to(bench.device) for _ in range(3)]
    dy = torch.randn(shape, generator=generator).to(dtype).to(bench.device)
    exact = _attend([tensor.double().cpu()[:1] for tensor in made], dy.double().cpu()[:1], _eager)
    for name, way in _list_ways().items():
        bench.report(name, lambda: _time_attention(bench, made, dy, way, exact))  # noqa: B023 - called at once


def _eager(q: Any, k: Any, v: Any) -> Any:
    scores = (q @ k.transpose(-2, -1)) * q.shape[-1] ** -0.5
    mask = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device).tril()
    return torch.softmax(scores.masked_fill(~mask, float("-inf")), -1) @ v


def _list_ways() -> Dict[str, Callable[..., Any]]:
    """Return each way to compute attention that this torch knows."""
    ways: Dict[str, Callable[..., Any]] = {"eager": _eager}
    try:
        from torch.nn.attention import SDPBackend, sdpa_kernel  # noqa: PLC0415 - since torch 2.3
    except ImportError:
        return ways

    def chosen(backend: Any) -> Callable[..., Any]:
        def attend(q: Any, k: Any, v: Any) -> Any:
            with sdpa_kernel([backend]):
                return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)

        return attend

    known = {"math": "MATH", "flash": "FLASH_ATTENTION", "efficient": "EFFICIENT_ATTENTION", "cudnn": "CUDNN_ATTENTION"}
    ways.update({name: chosen(getattr(SDPBackend, kind)) for name, kind in known.items() if hasattr(SDPBackend, kind)})
    return ways


def _attend(made: List[Any], dy: Any, way: Callable[..., Any]) -> List[Any]:
    """Return y, dq, dk and dv."""
    leaves = [tensor.detach().requires_grad_() for tensor in made]
    y = way(*leaves)
    return [y.detach(), *torch.autograd.grad(y, leaves, dy)]


def _time_attention(bench: Bench, made: List[Any], dy: Any, way: Any, exact: List[Any]) -> Dict[str, Any]:
    found = _attend(made, dy, way)
    error = max(distance(a[:1].cpu(), e) for a, e in zip(found, exact))
    del found
    peak = None
    if bench.device == "cuda":
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        _attend(made, dy, way)
        bench.wait()
        peak = torch.cuda.max_memory_allocated() - before
    ms = bench.median_ms(lambda: _attend(made, dy, way))
    bound = BOUNDS[str(made[0].dtype).split(".")[1]]
    return {"ms": ms, "value": ms, "unit": "ms", "peak_bytes": peak, "error": error, "right": error <= bound}


def bench_copy(bench: Bench) -> None:
    """Copies between host and GPU; on a CPU within its memory."""
    size = bench.given["mib"] << 20
    host = torch.ones(size, dtype=torch.uint8)
    pairs = {"host to host": (host, torch.empty_like(host))}
    if bench.device == "cuda":
        pinned, gpu = host.pin_memory(), host.cuda()
        pairs = {
            "host to GPU": (host, gpu),
            "pinned host to GPU": (pinned, gpu),
            "GPU to host": (gpu, host),
            "GPU to pinned host": (gpu, pinned),
            "GPU to GPU": (gpu, torch.empty_like(gpu)),
        }
    for name, (source, target) in pairs.items():
        bench.report(name, lambda: _time_copy(bench, source, target, size))  # noqa: B023 - called at once


def _time_copy(bench: Bench, source: Any, target: Any, size: int) -> Dict[str, Any]:
    ms = bench.median_ms(lambda: target.copy_(source, non_blocking=True))
    bench.wait()
    right = bool((target[:: size // 64].cpu() == 1).all())
    return {"ms": ms, "value": size / ms / 1e6, "unit": "GB/s", "right": right}


def bench_allreduce(bench: Bench) -> None:
    """The mean of a gradient over processes: RCCL or NCCL with several GPUs, gloo, and the agent's own."""
    count = torch.cuda.device_count() if bench.device == "cuda" else 0
    if count < 2:
        say("row", bench=bench.bench, name="nccl", problem=f"it takes two GPUs, and torch sees {count}")
    elif not _report_reduce(bench, "nccl", "nccl", {}):
        for name, env in CURES.items():
            _report_reduce(bench, name, "nccl", env)
    for backend in ("gloo", "host", *(["host-bf16"] if count > 1 else [])):  # a CPU rounds slower than it copies
        _report_reduce(bench, backend, backend, {})


def _report_reduce(bench: Bench, name: str, backend: str, env: Dict[str, str]) -> bool:
    """Print a row; return whether its result was right."""
    found: Dict[str, Any] = {}

    def work() -> Dict[str, Any]:
        found.update(_time_reduce(bench, backend, env))
        return found

    bench.report(name, work)
    return bool(found.get("right"))


def _time_reduce(bench: Bench, backend: str, more: Dict[str, str]) -> Dict[str, Any]:
    import socket  # noqa: PLC0415 - as below
    import subprocess  # noqa: PLC0415 - by this bench alone

    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = found.getsockname()[1]
    env = {**os.environ, **more, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": "2"}
    facts = json.dumps({**bench.given, "backend": backend, "device": bench.device})
    command = [sys.executable, os.path.abspath(__file__), facts]
    ranks = [
        subprocess.Popen(command, env={**env, "RANK": str(rank)}, stdout=subprocess.PIPE, text=True) for rank in (0, 1)
    ]
    try:
        printed = [rank.communicate(timeout=bench.given["limit_s"])[0] for rank in ranks]
    except subprocess.TimeoutExpired:
        return {"problem": f"no result within {bench.given['limit_s']:.0f} s: the collective hangs"}
    finally:
        for rank in ranks:
            rank.kill()
    lines = [line for line in printed[0].splitlines() if line.startswith('{"ms"')]
    if not lines:
        return {"problem": f"the processes ended with {[rank.returncode for rank in ranks]}"}
    measured: Dict[str, Any] = json.loads(lines[0])
    return measured


class Bucket:
    """A part of a gradient, as DDP gives it to a communication hook."""

    def __init__(self, part: Any, *, last: bool) -> None:
        self._part, self._last = part, last

    def buffer(self) -> Any:
        """Return the part."""
        return self._part

    def is_last(self) -> bool:
        """Whether it is the last of its step."""
        return self._last


def reduce_as_rank(given: Dict[str, Any]) -> None:
    """Be one of the two processes: average a gradient in buckets of DDP's size, as far as possible side by side."""
    import torch.distributed as dist  # noqa: PLC0415 - in a rank only

    rank, backend = int(os.environ["RANK"]), given["backend"]
    own = backend if backend in ("nccl", "gloo") else "gloo"
    several = given["device"] == "cuda" and torch.cuda.device_count() > 1
    device = torch.device("cuda", rank) if several else torch.device("cpu")
    if several:
        torch.cuda.set_device(device)
    dist.init_process_group(own)
    gradient = torch.full((given["mib"] << 18,), float(rank + 1), device=device)
    parts = gradient.split(BUCKET_BYTES.get(backend, DDP_BUCKET_BYTES) // 4)
    begin = _make_mean(dist, backend, gradient)

    def average(some: Any) -> float:
        dist.barrier()
        began = time.perf_counter()
        for work in [begin(Bucket(part, last=index == len(some) - 1)) for index, part in enumerate(some)]:
            work.wait()
        if several:
            torch.cuda.synchronize()
        return (time.perf_counter() - began) * 1e3

    average(parts)
    right = bool((gradient == 1.5).all())
    taken, last = (sorted(average(some) for _ in range(REDUCED)) for some in (parts, parts[-1:]))
    _write_means(given, taken[REDUCED // 2], last[REDUCED // 2], right=right)
    dist.barrier()
    dist.destroy_process_group()


def _write_means(given: Dict[str, Any], ms: float, last_ms: float, *, right: bool) -> None:
    rate = (given["mib"] << 20) / ms / 1e6
    row = {"ms": ms, "value": rate, "unit": "GB/s", "right": right, "last_ms": last_ms}
    if given.get("step_ms"):
        row["speedup"] = predict_speedup(given["step_ms"], ms, last_ms)
    sys.stdout.write(json.dumps(row) + "\n")
    sys.stdout.flush()


def _make_mean(dist: Any, backend: str, gradient: Any) -> Callable[[Bucket], Any]:
    """Return what begins the mean of a bucket and returns something to wait for."""
    if backend in ("nccl", "gloo"):
        return lambda bucket: dist.all_reduce(bucket.buffer().div_(2), async_op=True)
    sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "path"))
    from rocm_agent.ranks import host_mean  # noqa: PLC0415 - by this way alone

    mean = host_mean.prepare(torch, dist, [gradient], torch.bfloat16 if backend == "host-bf16" else None)
    return lambda bucket: mean.hook(None, bucket)


def predict_speedup(step_ms: float, mean_ms: float, last_ms: float) -> float:
    """Return how many times as fast two GPUs train as one whose step takes `step_ms`, with the same batch on each.

    The mean begins with the first gradients, so that most of it hides behind the backward pass; that of the last bucket
    cannot.
    """
    shown_ms = max(last_ms, mean_ms - BACKWARD_SHARE * step_ms)
    return 2 * step_ms / (step_ms + shown_ms)


BENCHES = {"gemm": bench_gemm, "attention": bench_attention, "copy": bench_copy, "allreduce": bench_allreduce}

if __name__ == "__main__":
    asked = json.loads(sys.argv[1])
    if "backend" in asked:
        reduce_as_rank(asked)
    else:
        try:
            machine = Bench(asked)
            for chosen in asked["benches"]:
                machine.bench = chosen
                BENCHES[chosen](machine)
        except SystemExit as reason:
            say("refused", message=str(reason), remedy="rocm-smi or nvidia-smi should; or --device cpu")
            sys.exit(2)
