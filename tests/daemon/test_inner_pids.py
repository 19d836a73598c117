"""A process that counts otherwise in its container is known by its number on this machine."""

from __future__ import annotations

from pathlib import Path

import pytest

from supervisor.daemon.inner_pids import InnerPids


@pytest.fixture
def known(tmp_path: Path) -> InnerPids:
    return InnerPids(tmp_path)


def test_what_a_process_in_a_container_reports_has_the_numbers_of_this_machine(known: InnerPids) -> None:
    known.add({500: 500, 501: 1, 502: 7})
    assert [known.find(pid) for pid in (500, 1, 7, None)] == [500, 501, 502, None]
    assert known.replace_in({"of": 7, "pids": [1, 7, 9], "loader": 1}) == {
        "of": 502,
        "pids": [501, 502, 9],
        "loader": 1,
    }


def test_one_that_has_ended_keeps_its_number_until_another_has_it(known: InnerPids) -> None:
    known.add({501: 1, 502: 7})
    known.add({501: 1})
    assert known.find(7) == 502
    known.add({501: 1, 900: 7})
    assert known.find(7) == 900


def test_a_number_that_two_processes_may_mean_is_left_as_it_is(known: InnerPids) -> None:
    known.add({501: 1, 502: 7})
    known.add({501: 1, 601: 1, 502: 7, 7: 7})
    assert [known.find(pid) for pid in (1, 7)] == [1, 7]


def test_without_a_container_nothing_is_changed(known: InnerPids) -> None:
    known.add({500: 500, 501: 501})
    facts: dict[str, object] = {"pids": [501]}
    assert known.find(501) == 501
    assert known.replace_in(facts) is facts


def test_an_attempt_without_a_shim_has_no_other_numbers(known: InnerPids) -> None:
    known.look()
    assert known.find(1) == 1
