"""A pytest plugin of `make laws`: it names the property tests, or counts what one of them really ran."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import is_hypothesis_test

from tests.examples import load_profile

load_profile()

RAN = re.compile(r"(\d+) passing\D+(\d+) failing\D+\d+ invalid")
"""How Hypothesis words it since 6.100: `100 passing, 0 failing, and 0 invalid test cases`."""
EXHAUSTED = "nothing left to do"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave the property tests and the statistical laws."""
    items[:] = [item for item in items if _is_law(item)]


def _is_law(item: pytest.Item) -> bool:
    return is_hypothesis_test(getattr(item, "obj", None)) or item.get_closest_marker("statistical") is not None


def pytest_collection_finish(session: pytest.Session) -> None:
    """Write the names of the laws."""
    if session.config.option.collectonly:
        _write({"laws": [item.nodeid for item in session.items]})


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    """Write how many examples the law took and how many of them contradicted it."""
    report = yield
    if call.when == "call" or call.excinfo is not None:
        reported, _, _ = str(getattr(item, "hypothesis_statistics", "")).partition("during shrink phase")
        ran = [int(passed) + int(failed) for passed, failed in RAN.findall(reported)]
        failed = call.excinfo is not None and not call.excinfo.errisinstance(pytest.skip.Exception)
        sampling = getattr(item, "funcargs", {}).get("sampling")
        _write(
            {
                "examples": sampling.samples if sampling else sum(ran),
                "counterexamples": len(sampling.against) if sampling else int(failed),
                "exhausted": EXHAUSTED in str(getattr(item, "hypothesis_statistics", "")),
                "seconds": call.duration,
                "failed": failed,
                "skipped": call.excinfo is not None and not failed,
            }
        )
    return report


def _write(facts: object) -> None:
    Path(os.environ["LAWS_OUTCOME"]).write_text(json.dumps(facts))
