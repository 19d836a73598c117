"""What is timed, kept, banned and forgotten: the planner with real tensors, files and processes."""

from __future__ import annotations

import functools
import multiprocessing
import os
import signal
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from comparing import differences, operands
from rocm_agent.conv2d import conv2d, limits, planner, tuner
from rocm_agent.conv2d.candidates import Candidate, Candidates
from rocm_agent.conv2d.case import Case
from rocm_agent.conv2d.clock import Watch
from rocm_agent.conv2d.geometry import geometry
from rocm_agent.conv2d.sizes import Need
from rocm_agent.conv2d.store import UNANSWERED, VERSION, Store
from torch.nn.functional import conv2d as native

planned = functools.partial(conv2d, algorithm="planned")
X, WEIGHT = (4, 8, 12, 14), (6, 8, 3, 3)
LAYER = "a layer"


@contextmanager
def planning(folder: str | None, **more: Any) -> Iterator[None]:
    """Plan as a new process with this folder would."""
    planner.use(limits.Limits(folder=folder, **more))
    try:
        yield
    finally:
        planner.use(limits.Limits(tune_s=0.0))


def train(sizes: tuple[tuple[int, int], ...] = (X[2:],)) -> None:
    """Run one layer forward and backward at these sizes and compare it with native."""
    for size in sizes:
        found = differences(planned, native, operands((*X[:2], *size), WEIGHT), {"padding": 1}, bound=1e-5)
        assert not found, (size, found)


@contextmanager
def reported() -> Iterator[list[str]]:
    """Collect what the package warns of."""
    output: list[str] = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield output
    output += [str(item.message) for item in caught if str(item.message).startswith("conv2d: ")]


def check_a_pass_is_timed_once_and_by_the_next_process_not_at_all() -> None:
    with tempfile.TemporaryDirectory() as folder:
        with planning(folder):
            train()
            assert planner.timings == 4, "forward, both gradients apart and together"
            train()
            assert planner.timings == 4
        with planning(folder):
            train()
            assert planner.timings == 0
        program = (
            f"import torch; torch.set_num_threads({torch.get_num_threads()})\n"
            "from rocm_agent.conv2d import conv2d, planner\n"
            "x = torch.randn(4, 8, 12, 14, requires_grad=True); w = torch.randn(6, 8, 3, 3, requires_grad=True)\n"
            "conv2d(x, w, torch.zeros(6), padding=1).sum().backward()\n"
            "print(planner.timings)"
        )
        env = os.environ | {"ROCM_SUPERVISOR_CONV2D_FOLDER": folder}
        assert subprocess.check_output([sys.executable, "-c", program], env=env) == b"0\n"


def check_training_at_many_sizes_is_timed_a_few_times_and_right_at_all() -> None:
    sizes = tuple((side, side + 2) for side in range(8, 40, 2))
    with tempfile.TemporaryDirectory() as folder, planning(folder):
        train(sizes)
        first = planner.timings
        assert 4 <= first <= 4 * 6 < 4 * len(sizes), first
        train(sizes)
        assert planner.timings == first


def check_without_time_to_tune_rules_choose_and_nothing_is_timed() -> None:
    with planning(None, tune_s=0.0):
        train(((8, 8), (9, 30)))
        assert planner.timings == 0


def check_a_layer_that_was_timed_for_many_sizes_takes_the_nearest() -> None:
    with planning(None):
        store = planner.store_of(torch.device("cpu"))
        case = case_of(X)
        for bucket in range(planner.BUCKETS):
            store.timed("forward", case.layer, f"{20 + bucket}x20", {"columns": 1.0 + bucket, "im2col": 9.0})
        planned(*operands(X, WEIGHT), padding=1)
        assert planner.timings == 0
        assert store.nearest("forward", case.layer, case.bucket) == {"columns": 1.0, "im2col": 9.0}


def case_of(x: tuple[int, ...], **allowed: Any) -> Case:
    """Return the test's layer for an input of this size."""
    shape = geometry(x, WEIGHT, (WEIGHT[0],), (1, 1), (1, 1), (1, 1), 1)
    return Case(x, WEIGHT, torch.float32, torch.device("cpu"), shape, limits.Limits(**allowed))


def check_winograd_is_no_candidate_where_it_is_switched_off() -> None:
    assert "winograd" in case_of(X).candidates("forward")
    for kind in ("forward", "input", "weight", "both"):
        assert "winograd" not in case_of(X, winograd=False).candidates(kind)
    with tempfile.TemporaryDirectory() as folder:
        with planning(folder):
            train()
        with planning(folder, winograd=False):
            planned(*operands(X, WEIGHT), padding=1)
            assert planner.timings == 0, "what was timed holds for those that remain"


def check_the_environment_sets_the_limits_and_nonsense_in_it_counts_as_nothing() -> None:
    before = dict(os.environ)
    try:
        for name in [name for name in os.environ if name.startswith(("ROCM_SUPERVISOR", "XDG"))]:
            del os.environ[name]
        os.environ["HOME"] = "/tmp"
        assert limits.from_environment() == limits.Limits(folder="/tmp/.cache/rocm-supervisor/conv2d")
        os.environ["ROCM_SUPERVISOR_ATTEMPT_DIR"] = "/s/jobs/yolo/7/run"
        assert limits.from_environment().folder == "/s/jobs/yolo/conv2d"
        os.environ.update(
            ROCM_SUPERVISOR_CONV2D_WORKSPACE_MB="64",
            ROCM_SUPERVISOR_CONV2D_WINOGRAD="off",
            ROCM_SUPERVISOR_CONV2D_TUNE_S="0",
            ROCM_SUPERVISOR_CONV2D_FOLDER="/plans",
        )
        assert limits.from_environment() == (64.0, False, 0.0, "/plans")
        for nonsense in ("", "many", "-1", "nan", "inf"):
            os.environ["ROCM_SUPERVISOR_CONV2D_TUNE_S"] = nonsense
            assert limits.from_environment().tune_s == limits.TUNE_S, nonsense
    finally:
        os.environ.clear()
        os.environ.update(before)


class Flawed(Case):
    """A convolution with three more candidates, none of which is right."""

    def candidates(self, kind: str) -> Candidates:
        """Return them beside the real ones."""

        def wrong(x: torch.Tensor, weight: torch.Tensor, bias: Any, shape: Any) -> torch.Tensor:
            return native(x, weight, bias, padding=1) * 1.1

        def not_a_number(*given: Any) -> torch.Tensor:
            return wrong(*given) * float("nan")

        def failing(*given: Any) -> torch.Tensor:
            return torch.mm(given[0], given[0])

        more = {"wrong": wrong, "NaN": not_a_number, "failing": failing}
        return {**{name: Candidate(run, Need(1)) for name, run in more.items()}, **super().candidates(kind)}


def check_wrong_and_failing_candidates_are_banned_with_the_reason_also_for_the_next_process() -> None:
    whole = case_of(X)
    case = Flawed(X, WEIGHT, torch.float32, torch.device("cpu"), whole.shape, limits.Limits())
    x, weight, bias = (tensor.detach() for tensor in operands(X, WEIGHT))
    with tempfile.TemporaryDirectory() as folder:
        store = Store(folder, "a card", "1.0")
        with reported() as output:
            found = tuner.times(case, "forward", ("wrong", "NaN"), (x, weight, bias, case.shape), store)
        assert found is not None
        assert set(found) == set(whole.candidates("forward"))
        assert len(output) == 3, output
        again = Store(folder, "a card", "1.0")
        for name, why in (("wrong", "1.0e-01"), ("NaN", "nan"), ("failing", "RuntimeError")):
            assert why in again.why_wrong("forward", case.layer, name), again.why_wrong("forward", case.layer, name)
            assert not again.why_wrong("input", case.layer, name)
        assert not Store(folder, "another card", "1.0").why_wrong("forward", case.layer, "wrong")
        assert not Store(folder, "a card", "1.1").why_wrong("forward", case.layer, "wrong")


class Counted(Case):
    """A convolution with one candidate, im2col, whose runs over the entire batch are counted."""

    runs = 0

    def candidates(self, kind: str) -> Candidates:
        """Return it alone."""
        columns = super().candidates(kind)["columns"]

        def counted(*given: Any) -> torch.Tensor:
            self.runs += given[0].shape[0] == X[0]
            return columns.run(*given)

        return {"counted": columns._replace(run=counted)}


def check_short_passes_are_timed_more_often_where_the_process_is_what_counts() -> None:
    x, weight, bias = (tensor.detach() for tensor in operands(X, WEIGHT))
    before = dict(tuner.SHORT_S)
    try:
        for short_s, runs in ((0.0, tuner.REPEATS), (60.0, tuner.MOST_REPEATS)):
            tuner.SHORT_S["cpu"] = short_s
            case = Counted(X, WEIGHT, torch.float32, torch.device("cpu"), case_of(X).shape, limits.Limits())
            tuner.times(case, "forward", (), (x, weight, bias, case.shape), Store(None, "a card", "1.0"))
            assert case.runs == runs, (short_s, case.runs)
    finally:
        tuner.SHORT_S.update(before)


def check_what_is_wrong_for_several_layers_is_used_for_none() -> None:
    store = Store(None, "a card", "1.0")
    with reported():
        for layer in ("one", "two"):
            store.wrong("forward", layer, "mec", "it is")
        assert not store.why_wrong("forward", "four", "mec")
        store.wrong("forward", "three", "mec", "it is")
    assert store.why_wrong("forward", "four", "mec")
    assert not store.why_wrong("input", "four", "mec")


def check_scarce_memory_condemns_no_candidate() -> None:
    def scarce(*_: Any) -> torch.Tensor:
        raise RuntimeError("CUDA out of memory. Tried to allocate")

    store, case, x = Store(None, "a card", "1.0"), case_of(X), torch.ones(X)
    try:
        tuner.verdict(case, "forward", "mec", scarce, (x, torch.ones(WEIGHT), None, case.shape), store)
    except tuner.Scarce:
        pass
    else:
        raise AssertionError
    assert not store.why_wrong("forward", case.layer, "mec")


def tries(folder: str, name: str, parent: Any) -> None:
    """Begin a trial, say so and stay in it until the parent says something."""
    with Store(folder, "a card", "1.0").trying("forward", LAYER, name):
        parent.send("at it")
        parent.recv()


def check_what_was_tried_when_a_process_died_is_banned_and_what_a_living_one_tries_is_not() -> None:
    fork, children = multiprocessing.get_context("fork"), {}
    with tempfile.TemporaryDirectory() as folder, reported() as output:
        for name in ("dying", "living"):
            here, there = fork.Pipe()
            child = fork.Process(target=tries, args=(folder, name, there))
            child.start()
            assert here.poll(60)
            children[name] = (child, here)
        pid = children["dying"][0].pid
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        children["dying"][0].join()
        store = Store(folder, "a card", "1.0")
        assert store.why_wrong("forward", LAYER, "dying") == UNANSWERED
        assert not store.why_wrong("forward", LAYER, "living")
        assert not store.why_wrong("forward", "another layer", "dying"), "a kill at a bad moment condemns one layer"
        children["living"][1].send("end")
        children["living"][0].join()
        assert not Store(folder, "a card", "1.0").why_wrong("forward", LAYER, "living")
        assert Store(folder, "a card", "1.0").why_wrong("forward", LAYER, "dying") == UNANSWERED
    assert len(output) == 1, output


def learns(folder: str, number: int) -> None:
    """Keep fifty facts of one's own."""
    store = Store(folder, "a card", "1.0")
    for index in range(50):
        store.timed("forward", f"layer {number}", f"{index}x0", {"mec": 1.0})


def check_several_processes_keep_their_facts_in_one_file() -> None:
    fork = multiprocessing.get_context("fork")
    with tempfile.TemporaryDirectory() as folder, reported() as output:
        children = [fork.Process(target=learns, args=(folder, number)) for number in range(4)]
        for child in children:
            child.start()
        for child in children:
            child.join()
        store = Store(folder, "a card", "1.0")
        assert [store.buckets("forward", f"layer {number}") for number in range(4)] == [50] * 4
    assert not output


def check_a_damaged_file_is_written_again_from_what_is_sound_and_reported_once() -> None:
    damages = (
        b"\x00\xff\n",
        b'{"timed": [1, 2], "ms": {}}\n',
        b'{"timed": ["a", "b", "c"], "ms": {"x": "y"}}\n',
        b'{"torn',
    )
    for damage in damages:
        with tempfile.TemporaryDirectory() as folder:
            store = Store(folder, f"card {damage!r}", "1.0")
            store.timed("forward", LAYER, "2x3", {"mec": 1.0})
            store.right("forward", LAYER, "mec")
            (file,) = Path(folder).glob("*.jsonl")
            file.write_bytes(file.read_bytes() + damage)
            with reported() as output:
                for _ in range(2):
                    store = Store(folder, f"card {damage!r}", "1.0")
                    assert store.times == {("forward", LAYER, "2x3"): {"mec": 1.0}}
                    assert store.is_right("forward", LAYER, "mec")
            assert len(output) == 1, output
            assert damage not in file.read_bytes()


def check_another_versions_file_is_not_believed() -> None:
    with tempfile.TemporaryDirectory() as folder:
        Store(folder, "an old card", "1.0").timed("forward", LAYER, "2x3", {"mec": 1.0})
        (file,) = Path(folder).glob("*.jsonl")
        file.write_text(file.read_text().replace(f'"conv2d": {VERSION}', '"conv2d": 0'))
        with reported() as output:
            assert not Store(folder, "an old card", "1.0").times
            assert not Store(folder, "an old card", "1.0").times
        assert len(output) == 1, output


def check_a_folder_that_cannot_be_written_is_reported_and_changes_no_result() -> None:
    with tempfile.NamedTemporaryFile() as file, reported() as output:
        with planning(f"{file.name}/conv2d"):
            train()
            assert planner.timings == 4
        assert Path(file.name).read_bytes() == b""
    assert len([report for report in output if "not kept" in report]) == 1, output


def check_warnings_that_are_errors_do_not_reach_the_training() -> None:
    with tempfile.NamedTemporaryFile() as file, warnings.catch_warnings():
        warnings.simplefilter("error")
        with planning(f"{file.name}/of/errors"):
            train()


def check_what_a_cpu_waits_for_is_not_a_candidates_cost() -> None:
    watch = Watch(functools.partial(time.sleep, 0.1), torch.device("cpu"), 1.0, by_sample=False)
    assert watch.run() < 50
