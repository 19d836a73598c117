"""What is watched: every rule that measures says how near its limit is, and why it is not watched where it is not."""

from __future__ import annotations

import pytest

from supervisor.core.history import History
from supervisor.core.readings import Stage
from supervisor.core.rules import RULES, Measures
from supervisor.core.rules.disk_low import DiskLow
from supervisor.core.rules.host_memory import HostMemory
from supervisor.core.rules.vram_high import VramHigh
from supervisor.core.watched import Watched

from .stories import GB, START, Story, story

MEASURES = [one for rule in RULES if isinstance(one := rule(), Measures)]


def watched(rule: Measures, told: Story) -> Watched:
    found = rule.watch(told.history)
    assert found is not None
    return found


@pytest.mark.parametrize("rule", MEASURES, ids=lambda rule: rule.name)
def test_of_a_training_of_which_nothing_is_known_it_says_why_nothing_is_watched(rule: Measures) -> None:
    found = rule.watch(History(now=START, launched_at=START))
    assert found is not None
    assert found.not_watched
    assert found.share is None


@pytest.mark.parametrize("rule", MEASURES, ids=lambda rule: rule.name)
def test_of_one_that_steps_it_gives_a_share_or_the_reason(rule: Measures) -> None:
    told = story().training(200).stage(Stage.STEP, whole=True).gpu(5, busy=90.0, used=3 * GB).tree(5, cpu=99.0)
    told.memory(5, available=20 * GB).disks(data=400 * GB)
    found = watched(rule, told)
    assert (found.share is not None) != (found.not_watched is not None)
    assert found.rule == getattr(rule, "name", None)


def test_the_fullest_card_is_measured_in_percent_or_in_the_settings_bytes() -> None:
    told = story().training(10).gpu(used=3 * GB)
    assert (watched(VramHigh(), told).now, watched(VramHigh(), told).limit) == (50.0, 95.0)
    found = watched(VramHigh(limit_bytes=4 * GB), told)
    assert (found.unit, found.share) == ("bytes", 0.75)
    assert watched(VramHigh(), told.silence(61)).not_watched is not None


def test_of_memory_and_disks_it_is_what_is_left_that_counts() -> None:
    told = story().training(10).memory(available=16 * GB)
    found = watched(HostMemory(limit_fraction=0.25), told)
    assert (found.below, found.share) == (True, 0.5)
    told.disks(data=400_000_000, other=4 * GB)
    found = watched(DiskLow(), told)
    assert (found.what, found.share) == ("space left on /data", 0.5)
