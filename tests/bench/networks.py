"""Other people's networks under the Conv2d patch, beside native: one at a time in a process of its own, and a table.

    PYTHONPATH=supervisor/agent/path PYTHON tests/bench/networks.py --to FILE.jsonl [--sources timm,...] [--only NAME]

PYTHON has torch and the packages of the sources. Each network, in training mode, runs one forward and one backward pass
natively, in float64, and under the patch in both scopes; results and gradients may be as far from float64 as --times
native's own distance, or --floor where that is less. Where they are further for all of four random weights, the network
counts as one that amplifies rounding if each pass of each convolution holds that bound for the very operands that it
was given, and native goes as far once its convolutions' results are changed by as much as was rounded: a number that
rounding takes to the other side of a ReLU does that. FILE gets a line a network, which a further call leaves out: the
run is resumable, --seconds long at most. The table is of all lines in FILE. Status 1 where one raised or differed.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import json
import math
import multiprocessing
import os
import resource
import sys
import time
import traceback
import warnings
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import networks_built
import networks_passes
import torch
from rocm_agent.conv2d import limits, patch, planner, unpatch

SOURCES = ("torchvision", "timm", "ultralytics", "diffusers", "transformers", "packages")
SCOPES = ("modules", "all")
DRAWS = 8
"""Times that native is run with other noise on its convolutions' results."""
SEEDS = 4
"""Random weights that a network is tried with until results are alike: one number that rounding takes to the other side
of a ReLU, or to another box, sets gradients apart, natively as well; a wrong pass does so for all weights."""
OURS = "conv2d:"
"""How a warning of the patch begins."""


def main() -> int:
    """Run what is not in the file yet, print the table, return 1 where a network raised or differed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--to", type=Path, required=True, help="the file of results")
    parser.add_argument("--sources", default=",".join(SOURCES))
    parser.add_argument("--only", default="", help="networks whose names contain one of these")
    parser.add_argument("--how", default="fp32", help="which of fp32,amp,last (channels_last), comma separated")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--seconds", type=float, default=500.0, help="of the whole run")
    parser.add_argument("--limit", type=float, default=90.0, help="seconds of one network")
    parser.add_argument("--memory", type=float, default=8.0, help="GiB of one network's process, on a CPU")
    parser.add_argument("--parameters", type=float, default=80.0, help="millions from which a network is left out")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--each", type=int, default=2, help="networks of each family of timm")
    parser.add_argument("--tune", type=float, default=0.0, help="seconds that plans may be timed")
    parser.add_argument("--first", default="", help="candidates taken before those of the rules, comma separated")
    parser.add_argument("--times", type=float, default=30.0)
    parser.add_argument("--times-half", type=float, default=4.0, help="the same in half precision")
    parser.add_argument("--floor", type=float, default=2e-5)
    parser.add_argument("--floor-half", type=float, default=2e-3, help="of one pass in half precision")
    parser.add_argument("--alike", type=float, default=1e-3, help="of native, where float64 does not run")
    given = parser.parse_args()
    known = {(line["source"], line["name"]) for line in lines(given.to)}
    wanted = [
        (source, name)
        for source in given.sources.split(",")
        for name in networks_built.names(source, given.each)
        if any(part in name for part in given.only.split(",")) and (source, name) not in known
    ]
    run(wanted, given)
    return table(lines(given.to))


def lines(path: Path) -> list[dict[str, Any]]:
    """Return the results so far."""
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


# --- processes --------------------------------------------------------------------------------------------------------


def run(wanted: list[tuple[str, str]], given: argparse.Namespace) -> None:
    """Run each network in a child of this process, which has imported the packages and computed nothing.

    On a GPU that one of the packages has asked for, the children import them by themselves.
    """
    ends = time.perf_counter() + given.seconds
    bad = given.device == "cuda" and _forks_are_bad()
    context: Any = multiprocessing.get_context("spawn" if bad else "fork")
    running: dict[tuple[str, str], tuple[Any, Any, float]] = {}
    waiting = list(reversed(wanted))
    with given.to.open("a") as file:
        while running or (waiting and time.perf_counter() < ends):
            while waiting and len(running) < given.jobs and time.perf_counter() < ends:
                key = waiting.pop()
                mine, theirs = context.Pipe(duplex=False)
                child = context.Process(target=_child, args=(theirs, *key, given))
                child.start()
                theirs.close()
                running[key] = child, mine, time.perf_counter()
            for key, (child, pipe, began) in list(running.items()):
                line = _answer(child, pipe, late=time.perf_counter() - began > given.limit)
                if line is not None:
                    del running[key]
                    seconds = round(time.perf_counter() - began, 1)
                    file.write(json.dumps({"source": key[0], "name": key[1], **line, "seconds": seconds}) + "\n")
                    file.flush()
            time.sleep(0.02)
    sys.stdout.write(f"{len(waiting)} networks are still to run\n")


def _forks_are_bad() -> bool:
    """Whether a package that was imported has asked for GPUs, after which a forked child can use none."""
    child = os.fork()
    if child == 0:
        os._exit(int(torch.cuda._is_in_bad_fork()))
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) != 0


def _answer(child: Any, pipe: Any, *, late: bool) -> dict[str, Any] | None:
    """Return the child's line, or what became of it; None while it runs."""
    line = None
    with contextlib.suppress(EOFError):
        if pipe.poll():
            line = pipe.recv()
    if line is None and child.is_alive() and not late:
        return None
    if line is None:
        child.kill()
        child.join()
        line = {"status": "not run", "why": "past the limit of time" if late else f"process ended: {child.exitcode}"}
    child.join()
    pipe.close()
    return dict(line)


def _child(pipe: Any, source: str, name: str, given: argparse.Namespace) -> None:
    sys.stdout = sys.stderr = Path(os.devnull).open("w")  # noqa: SIM115 - for as long as the process lives
    if given.device == "cpu":
        most = int(given.memory * (1 << 30))
        resource.setrlimit(resource.RLIMIT_AS, (most, most))
    torch.set_num_threads(1)  # more of them wait for each other on a busy machine
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    by_rule = planner.preferred
    planner.preferred = lambda case, kind: (*given.first.split(","), *by_rule(case, kind))
    try:
        line = measured(source, name, given)
    except Exception:  # noqa: BLE001 - whatever another's package raises
        line = {"status": "not run", "why": traceback.format_exc()[-600:]}
    pipe.send(line)
    pipe.close()


# --- one network ------------------------------------------------------------------------------------------------------


class Net:
    """A network and how it is called."""

    def __init__(self, source: str, name: str, device: str, seed: int = 0) -> None:
        torch.manual_seed(seed)
        self.net, self._given, self.sizes = networks_built.build(source, name)
        self.net = self.net.train().float().to(device)
        for parameter in self.net.parameters():
            parameter.requires_grad_()
        self.device = device

    def results(self, size: int, how: str, dtype: torch.dtype) -> list[torch.Tensor]:
        """Return all results and gradients of one pass, flat: results first, then one of all parameters."""
        net = copy.deepcopy(self.net).to(dtype)
        last = how == "last"
        if last:
            net = net.to(memory_format=torch.channels_last)
        args, options = moved(self._given(size), self.device, dtype, last=last)
        torch.manual_seed(5)  # of dropout, and of what chooses samples
        with torch.autocast(
            self.device,
            torch.float16 if self.device == "cuda" else torch.bfloat16,
            enabled=how == "amp" and dtype is torch.float32,
        ):
            found = tensors_in(net(*args, **options))
        sum((tensor.to(dtype) * waves(tensor)).sum() for tensor in found).backward()
        grads = [p.grad.flatten() for p in net.parameters() if p.grad is not None]
        return [*(tensor.detach().to(dtype) for tensor in found), torch.cat(grads)]


def moved(value: Any, device: str, dtype: torch.dtype, *, last: bool) -> Any:
    """Return the arguments on the device, floats in `dtype`."""
    if isinstance(value, torch.Tensor):
        value = value.to(device, dtype if value.is_floating_point() else value.dtype)
        return value.to(memory_format=torch.channels_last) if last and value.dim() == 4 else value
    if isinstance(value, (int, str)):
        return value
    if isinstance(value, dict):
        return {key: moved(item, device, dtype, last=last) for key, item in value.items()}
    return type(value)(moved(item, device, dtype, last=last) for item in value)


def tensors_in(value: Any) -> list[torch.Tensor]:
    """Return the tensors in whatever a network gives back that have a gradient."""
    if isinstance(value, torch.Tensor):
        return [value] if value.is_floating_point() and value.requires_grad else []
    if isinstance(value, dict):
        value = value.values()
    if isinstance(value, str) or not isinstance(value, Iterable):
        return []
    return [tensor for item in value for tensor in tensors_in(item)]


def waves(tensor: torch.Tensor) -> torch.Tensor:
    """Return fixed weights for a sum of the tensor's elements."""
    at = torch.arange(tensor.numel(), device=tensor.device, dtype=torch.float64)
    return ((at * 0.37).cos() / max(1, tensor.numel()) ** 0.5).view(tensor.shape).to(tensor.dtype)


def measured(source: str, name: str, given: argparse.Namespace) -> dict[str, Any]:
    """Return the network's line: whether it ran, raised or differed, and how far it was from float64."""
    net = Net(source, name, given.device)
    millions = sum(parameter.numel() for parameter in net.net.parameters()) / 1e6
    if millions > given.parameters:
        return {"status": "left out", "why": f"{millions:.0f} million parameters"}
    size = runnable(net)
    line: dict[str, Any] = {"status": "ok", "size": size, "millions": round(millions, 2), "errors": {}}
    for seed in range(SEEDS):
        if seed:
            net = Net(source, name, given.device, seed)
        faults = compared(net, size, given, line)
        if not faults:
            return line
        line.setdefault("seeds", []).append(faults)
        if any(word in fault for fault in faults for word in ("raises", OURS)):
            break
    else:
        if amplifies(source, name, size, given, line):
            return line
    line["status"], line["why"] = "fault", "; ".join(line["seeds"][0])
    return line


def amplifies(source: str, name: str, size: int, given: argparse.Namespace, line: dict[str, Any]) -> bool:
    """Whether the network, and no pass, is what sets gradients apart: no pass is wrong for any of the weights.

    And for some weights native goes as far. What was found is noted in the line.
    """
    alike = False
    for seed in range(SEEDS):
        net = Net(source, name, given.device, seed)
        exact = reference(net, size) or [each.double() for each in net.results(size, "fp32", torch.float32)]
        found = {}
        for how in given.how.split(","):
            if how in line.get("not natively", {}):
                continue
            for scope in SCOPES:
                found[f"{how} {scope}"] = _amplified(net, (size, how, torch.float32), scope, exact, given)
        line.setdefault("amplified", []).append(found)
        if any(each["wrong"] for each in found.values()):
            return False
        alike = alike or all(each["as far"] for each in found.values())
    return alike


def _amplified(
    net: Net, run: tuple[int, str, torch.dtype], scope: str, exact: list[torch.Tensor], given: argparse.Namespace
) -> dict[str, Any]:
    """Return the worst pass, and the distances under the patch beside those of native with as much noise."""
    with networks_passes.kept() as kept:
        fault, ours = _patched(net, run, scope, exact, given.tune)
    if fault:
        return {"wrong": fault, "as far": False}
    times, floor = (given.times_half, given.floor_half) if run[1] == "amp" else (given.times, given.floor)
    passes = networks_passes.passes(kept)
    wrong = networks_passes.wrong(passes, times, floor) if passes else "no pass was kept"
    noise, drawn = networks_passes.rounding(passes), []
    for draw in range(DRAWS):
        with networks_passes.perturbed(net.net, noise, draw):
            drawn.append(gaps(net.results(*run), exact))
    native = gaps(net.results(*run), exact)
    bound = [max(times * n, given.floor, *d) for n, *d in zip(native, *drawn, strict=True)]
    as_far = all(o <= b for o, b in zip(ours, bound, strict=True))
    worst = max(((each.ours, each.native) for each in passes), default=None)
    return {"wrong": wrong, "as far": as_far, "pass": worst, "noise": noise, "ours": ours, "perturbed": drawn}


def compared(net: Net, size: int, given: argparse.Namespace, line: dict[str, Any]) -> list[str]:
    """Return what differs, for the weights that the network has; note the errors in the line."""
    faults = []
    exact, floor = reference(net, size), given.floor
    if exact is None:
        exact, floor = [tensor.double() for tensor in net.results(size, "fp32", torch.float32)], given.alike
        line["against"] = "native"
    for how in given.how.split(","):
        try:
            native, again = (gaps(net.results(size, how, torch.float32), exact) for _ in range(2))
        except (RuntimeError, TypeError) as error:
            line.setdefault("not natively", {})[how] = str(error)[:200]
            continue
        times = given.times_half if how == "amp" else given.times
        for scope in SCOPES:
            fault, ours = _patched(net, (size, how, torch.float32), scope, exact, given.tune)
            line["errors"][f"{how} {scope}"] = [ours, native]
            bound = [
                max(times * max(n, a), floor) if not math.isnan(n) else float("inf")
                for n, a in zip(native, again, strict=True)
            ]
            if not fault and not all(
                o <= b or math.isinf(b) for o, b in zip(ours, bound, strict=True)
            ):  # as NaN is not
                fault = f"differs: {ours} from float64, native {native}"
            if fault:
                faults.append(f"{how}, {scope}: {fault}")
    return faults


def _patched(
    net: Net, run: tuple[int, str, torch.dtype], scope: str, exact: list[torch.Tensor], tune_s: float
) -> tuple[str, list[float]]:
    """Return what went wrong under the patch, "" for nothing, and the distances to float64."""
    planner.use(limits.Limits(folder=None, tune_s=tune_s))
    patch("planned", scope)
    try:
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            found = gaps(net.results(*run), exact)
    except Exception:  # noqa: BLE001 - it is what is looked for
        return "raises: " + traceback.format_exc()[-900:], []
    finally:
        unpatch()
    reported = [str(each.message) for each in seen if str(each.message).startswith(OURS)]
    return "; ".join(reported), found


def runnable(net: Net) -> int:
    """Return the smallest size at which the network runs natively; raise what it raised at the largest."""
    for size in net.sizes:
        try:
            net.results(size, "fp32", torch.float32)
        except Exception:
            if size == net.sizes[-1]:
                raise
        else:
            return size
    raise AssertionError


def reference(net: Net, size: int) -> list[torch.Tensor] | None:
    """Return what float64 gives, None for a network that computes in float32 alone."""
    try:
        return net.results(size, "fp32", torch.float64)
    except (RuntimeError, TypeError):
        return None


def gaps(found: list[torch.Tensor], exact: list[torch.Tensor]) -> list[float]:
    """Return how far results, the worst of them, and all gradients together are from float64, relative L2."""
    each = [distance(a, e) if a.shape == e.shape else float("inf") for a, e in zip(found, exact, strict=True)]
    return [max(each[:-1], default=0.0), each[-1]]


def distance(found: torch.Tensor, exact: torch.Tensor) -> float:
    """Return the relative L2 distance."""
    return float(f"{float((found.double() - exact).norm() / exact.norm().clamp_min(1e-30)):.2e}")


# --- the table --------------------------------------------------------------------------------------------------------


def table(found: list[dict[str, Any]]) -> int:
    """Print what ran by source and family, then each fault; return 1 where there is one."""
    faults = [line for line in found if line["status"] == "fault"]
    for source in SOURCES:
        mine = [line for line in found if line["source"] == source]
        if mine:
            sys.stdout.write(_row(source, mine))
            kinds: dict[str, list[dict[str, Any]]] = {}
            for line in mine:
                kinds.setdefault(networks_built.family(source, line["name"]), []).append(line)
            for kind in sorted(kinds):
                sys.stdout.write(_row(f"    {kind}", kinds[kind]))
    sys.stdout.write(_row("all", found))
    for line in found:
        if line["status"] == "ok" and "amplified" in line:
            sys.stdout.write(f"{line['source']} {line['name']} amplifies rounding: {line['seeds'][0]}\n")
    for line in faults:
        sys.stdout.write(f"{line['source']} {line['name']}: {line['why']}\n")
    return 1 if faults else 0


def _row(name: str, found: list[dict[str, Any]]) -> str:
    count = {
        status: sum(line["status"] == status for line in found) for status in ("ok", "fault", "left out", "not run")
    }
    ratios = sorted(
        ours / max(native, 1e-7)
        for line in found
        for pair in line.get("errors", {}).values()
        for ours, native in zip(*pair, strict=False)
    )
    worst = f"{ratios[len(ratios) // 2]:6.2f} {ratios[-1]:6.1f}" if ratios else ""
    return (
        f"{name:24} native runs {count['ok'] + count['fault']:4}, raise or differ {count['fault']:3}, not run natively "
        f"{count['not run']:3}, left out {count['left out']:3}; error of native's, median and most: {worst}\n"
    )


if __name__ == "__main__":
    sys.exit(main())
