"""What a tune names because only a start can apply it."""

from __future__ import annotations

import pytest

from supervisor.core.tuning.knob import Facts
from supervisor.core.tuning.starts import Start, list_left_to_starts, read_version

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


def test_threads_are_not_bound_where_workers_would_inherit_it() -> None:
    assert names(Facts(device="cpu", cuda=False, threads=4, workers=2), Start()) == ["malloc"]


@pytest.mark.parametrize(
    ("text", "version"), [("2.12.0+cu130", (2, 12)), ("1.13.1", (1, 13)), ("next", None), (7, None)]
)
def test_a_version_is_its_first_two_numbers(text: str, version: tuple[int, int] | None) -> None:
    assert read_version(text) == version
