"""ECC: counters that grow since the launch, and the kernel that tells of it too."""

from __future__ import annotations

from supervisor.core.findings import FaultClass
from supervisor.core.flags import Severity
from supervisor.core.rules.ecc import Ecc

from .long_stories import trained
from .stories import GPU

RULE = Ecc()


def test_counter_and_kernel_agree_and_what_was_saved_since_is_not_trusted() -> None:
    timeline = trained().card(5, ecc_uncorrectable=2)
    sound_at = timeline.now
    timeline.silence(1).card(3, ecc_uncorrectable=3).kernel(FaultClass.ECC_UNCORRECTABLE, fatal=False)
    flag = timeline.check(RULE)
    assert flag is not None
    assert (flag.severity, flag.since, flag.subject) == (Severity.CRITICAL, sound_at, GPU)


def test_the_counter_alone_is_reported() -> None:
    flag = trained().card(5, ecc_uncorrectable=2).card(ecc_uncorrectable=3).check(RULE)
    assert flag is not None
    assert flag.severity is Severity.WARNING


def test_errors_from_before_the_launch_say_nothing() -> None:
    assert trained().card(5, ecc_uncorrectable=7, ecc_correctable=5000).check(RULE) is None


def test_a_counter_that_is_cleared_by_a_reset_counts_from_there() -> None:
    assert trained().card(5, ecc_uncorrectable=7).card(5, ecc_uncorrectable=0).check(RULE) is None
    assert trained().card(5, ecc_uncorrectable=7).card(ecc_uncorrectable=0).card(ecc_uncorrectable=1).check(RULE)


def test_many_corrected_errors_are_reported_and_a_few_are_not() -> None:
    flag = trained().card(ecc_correctable=10).card(ecc_correctable=111).check(RULE)
    assert flag is not None
    assert (flag.severity, flag.can_save) == (Severity.WARNING, True)
    assert trained().card(ecc_correctable=10).card(ecc_correctable=110).check(RULE) is None


def test_a_gpu_without_ecc_says_nothing() -> None:
    assert trained().card(60).check(RULE) is None
    timeline = trained().card(ecc_uncorrectable=1).silence(1).card(ecc_uncorrectable=None)
    assert timeline.check(RULE) is None


def test_a_counter_that_is_not_reported_any_more_is_not_judged_and_its_gauge_names_the_reason() -> None:
    timeline = trained().card(ecc_uncorrectable=1, ecc_correctable=10).silence(1).card(ecc_uncorrectable=1)
    assert timeline.check(RULE) is None
    uncorrectable, corrected = RULE.measure(timeline.history)
    assert uncorrectable.not_watched is None
    assert (corrected.now, corrected.not_watched) == (None, "counter not reported by this GPU")
