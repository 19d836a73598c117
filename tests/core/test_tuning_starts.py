"""What a tune names because only a start can apply it."""

from __future__ import annotations

import pytest

from supervisor.core.tuning.knob import Facts, Kind
from supervisor.core.tuning.restarts import StartArm
from supervisor.core.tuning.starts import Start, list_left_to_starts, list_start_arms, read_version

CPU = Facts(device="cpu", processors=4, threads=4, workers=0, cuda=False)
ROCM = Facts(device="cuda:0", cuda=True, hip=True, convolves=True, cudnn_benchmark=True)
CUDA = Facts(device="cuda:0", cuda=True)
NEW = Start(torch=(2, 6))


def names(facts: Facts, start: Start, remedied: tuple[str, ...] = ()) -> list[str]:
    return [row.knob for row in list_left_to_starts(facts, start, remedied)]


def test_each_kind_of_training_has_its_own() -> None:
    assert names(CPU, Start()) == ["openmp_binding", "malloc"]
    assert names(ROCM, NEW) == ["allocator", "miopen_find_mode", "hipblaslt"]
    assert names(CUDA, NEW) == ["allocator"]
    assert names(CUDA, Start(torch=(1, 13))) == names(CUDA, Start()) == [], "an older torch does not start with it"
    assert names(Facts(), Start()) == [], "nothing is known"


def test_the_line_for_the_configuration_is_that_of_the_card() -> None:
    for facts, name in ((ROCM, "PYTORCH_HIP_ALLOC_CONF"), (CUDA, "PYTORCH_CUDA_ALLOC_CONF")):
        row = list_left_to_starts(facts, NEW, ())[0]
        assert row.why.endswith(f'env = {{ {name} = "expandable_segments:True" }}')


def test_what_the_owner_or_a_remedy_has_decided_is_not_named() -> None:
    env = {"OMP_NUM_THREADS": "2", "LD_PRELOAD": "a.so", "PYTORCH_ALLOC_CONF": "x", "MIOPEN_FIND_MODE": "2"}
    assert names(CPU, Start(env=env)) == []
    assert names(ROCM, Start(env=env, torch=(2, 6))) == ["hipblaslt"]
    assert names(ROCM, NEW, remedied=("allocator", "conv2d")) == ["hipblaslt"]


def test_starts_are_tried_with_each_setting_that_fits_and_then_with_the_jobs_environments() -> None:
    threads = {"OMP_NUM_THREADS": "4", "OMP_PLACES": "cores", "OMP_PROC_BIND": "close"}
    keeps = {"MALLOC_MMAP_THRESHOLD_": "1073741824", "MALLOC_TRIM_THRESHOLD_": "1073741824"}
    assert list_start_arms(CPU, Start(), (), ("new", "old"), None) == (
        StartArm(
            knob="openmp_binding",
            value="OMP_NUM_THREADS=4 OMP_PLACES=cores OMP_PROC_BIND=close",
            kind=Kind.SAME_ARITHMETIC,
            env=tuple(threads.items()),
        ),
        StartArm(
            knob="malloc",
            value="MALLOC_MMAP_THRESHOLD_=1073741824 MALLOC_TRIM_THRESHOLD_=1073741824",
            kind=Kind.SAME_ARITHMETIC,
            env=tuple(keeps.items()),
        ),
        StartArm(knob="environment", value="new", kind=Kind.NUMERICS, environment="new"),
        StartArm(knob="environment", value="old", kind=Kind.NUMERICS, environment="old"),
    )


def test_a_training_that_was_moved_to_an_environment_stays_there() -> None:
    moved = list_start_arms(ROCM, Start(env={"PYTORCH_ALLOC_CONF": "x"}), ("cudnn",), ("new", "old"), "old")
    assert [(arm.knob, arm.kind, arm.env) for arm in moved] == [
        ("hipblaslt", Kind.NUMERICS, (("TORCH_BLAS_PREFER_HIPBLASLT", "1"),))
    ]
    (find_mode,) = [arm for arm in list_start_arms(ROCM, Start(), (), (), None) if arm.knob == "miopen_find_mode"]
    assert find_mode.env == (("MIOPEN_FIND_MODE", "NORMAL"),)


def test_two_threads_are_bound_and_one_is_not() -> None:
    for threads, bound in ((2, ["openmp_binding", "malloc"]), (1, ["malloc"]), (None, ["malloc"])):
        assert names(Facts(device="cpu", cuda=False, threads=threads, workers=0), Start()) == bound


def test_segments_that_grow_are_known_from_torch_2_1_on() -> None:
    assert names(CUDA, Start(torch=(2, 1))) == ["allocator"]
    assert names(CUDA, Start(torch=(2, 0))) == []


def test_threads_are_not_bound_where_workers_would_inherit_it() -> None:
    assert names(Facts(device="cpu", cuda=False, threads=4, workers=2), Start()) == ["malloc"]


@pytest.mark.parametrize(
    ("text", "version"), [("2.12.0+cu130", (2, 12)), ("1.13.1", (1, 13)), ("next", None), (7, None)]
)
def test_a_version_is_its_first_two_numbers(text: str, version: tuple[int, int] | None) -> None:
    assert read_version(text) == version
