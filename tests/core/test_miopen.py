"""Which Conv2d a job gets, and the names of the cards on which that depends."""

from __future__ import annotations

from pathlib import Path

import pytest

from supervisor.core.remedies.miopen import (
    CONV2D_SETTINGS,
    MIOPEN_FACTS,
    conv2d_algorithm,
    gfx_name,
    miopen_fails,
)

ALGORITHMS = [setting for setting in CONV2D_SETTINGS if setting not in ("auto", "off")]


@pytest.mark.parametrize(
    ("number", "name"),
    [
        (80003, "gfx803"),
        (90000, "gfx900"),
        (90006, "gfx906"),
        (90010, "gfx90a"),
        (90012, "gfx90c"),
        (90402, "gfx942"),
        (90500, "gfx950"),
        (100100, "gfx1010"),
        (100101, "gfx1011"),
        (100102, "gfx1012"),
        (100300, "gfx1030"),
        (110000, "gfx1100"),
        (110501, "gfx1151"),
        (120001, "gfx1201"),
    ],
)
def test_a_target_version_is_named_as_the_compiler_names_it(number: int, name: str) -> None:
    assert gfx_name(number) == name


@pytest.mark.parametrize("number", [0, -100100, 42, 9999, 91600, 90016, 109999])
def test_a_cpu_and_a_number_without_sense_have_no_name(number: int) -> None:
    assert gfx_name(number) is None


@pytest.mark.parametrize(("number", "name"), [(100100, "gfx1010"), (90006, "gfx906"), (90010, "gfx90a"), (0, None)])
def test_a_node_of_the_topology_is_named(number: int, name: str | None) -> None:
    assert gfx_name(number) == name


def test_recorded_topologies_give_the_names_of_their_gpus(corpus: Path) -> None:
    names = {}
    for properties in sorted(corpus.glob("sysfs/*/kfd/topology/nodes/*/properties")):
        fields = dict(line.split() for line in properties.read_text().splitlines() if len(line.split()) == 2)
        names[f"{properties.parts[-6]}/{properties.parts[-2]}"] = gfx_name(int(fields["gfx_target_version"]))
    assert names == {"strixpoint/0": None, "strixpoint/1": "gfx1150", "vangogh/1": "gfx1033"}


@pytest.mark.parametrize("gfx_version", ["gfx1010", "gfx1011", "gfx1012", "gfx1010:xnack-"])
def test_auto_replaces_conv2d_on_every_rdna1_gpu(gfx_version: str) -> None:
    assert miopen_fails(gfx_version)
    assert conv2d_algorithm("auto", (gfx_version,), miopen_failed=False) == "planned"


@pytest.mark.parametrize("gfx_version", ["gfx803", "gfx906", "gfx90a", "gfx1030", "gfx1100", "gfx1201", "", "gfx10100"])
def test_auto_leaves_a_gpu_alone_that_is_not_known_to_fail(gfx_version: str) -> None:
    assert not miopen_fails(gfx_version)
    assert conv2d_algorithm("auto", (gfx_version,), miopen_failed=False) == "off"


def test_one_failing_gpu_among_others_is_enough_for_auto() -> None:
    assert conv2d_algorithm("auto", ("gfx1100", "gfx1012"), miopen_failed=False) == "planned"


def test_auto_without_known_gpus_changes_nothing_until_miopen_has_failed() -> None:
    assert conv2d_algorithm("auto", (), miopen_failed=False) == "off"
    assert conv2d_algorithm("auto", (), miopen_failed=True) == "planned"


def test_auto_replaces_conv2d_after_miopen_failed_on_a_gpu_that_should_work() -> None:
    assert conv2d_algorithm("auto", ("gfx1100",), miopen_failed=True) == "planned"


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_named_algorithm_is_used_on_every_gpu(algorithm: str) -> None:
    assert conv2d_algorithm(algorithm, ("gfx1100",), miopen_failed=False) == algorithm
    assert conv2d_algorithm(algorithm, (), miopen_failed=True) == algorithm


def test_off_stays_off_even_where_miopen_fails() -> None:
    assert conv2d_algorithm("off", ("gfx1010",), miopen_failed=True) == "off"


def test_auto_only_ever_answers_with_another_setting() -> None:
    answers = {conv2d_algorithm("auto", (), miopen_failed=failed) for failed in (False, True)}
    assert answers <= set(CONV2D_SETTINGS) - {"auto"}


@pytest.mark.parametrize("setting", ["", "on", "Auto", "winograd?"])
def test_an_unknown_setting_is_refused_with_the_ones_that_exist(setting: str) -> None:
    with pytest.raises(ValueError, match="auto, off, planned, unfold, unfold_reference") as refusal:
        conv2d_algorithm(setting, ("gfx1010",), miopen_failed=False)
    assert repr(setting) in str(refusal.value)


def test_every_fact_names_its_source_and_stands_once() -> None:
    targets = [fact.gfx_version for fact in MIOPEN_FACTS]
    assert len(targets) == len(set(targets))
    assert all("/" in fact.source and fact.gpus for fact in MIOPEN_FACTS)
