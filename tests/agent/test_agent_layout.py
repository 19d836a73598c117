"""The agent's numbers are those of core/attempt_files.py."""

from __future__ import annotations

import importlib.util
import struct
from types import ModuleType

import pytest
from agent_by_hand import AGENT_PATH

from supervisor.core import attempt_files as at

STAGES = {"SETUP", "WARMUP", "STEP", "VALIDATE", "CHECKPOINT", "ENDED", "EXITING"}
ASIDES = {"DATA_WAIT", "COMPILE", "LOOP"}
IN_RUN = {"RECORDER", "AGENT", "SHIM", "STACKS"}
"""The agent knows its part of the folder alone."""


@pytest.fixture(scope="module")
def layout() -> ModuleType:
    spec = importlib.util.spec_from_file_location("agents_layout", AGENT_PATH / "rocm_agent" / "layout.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_number_of_the_agent_is_the_contracts(layout: ModuleType) -> None:
    names = {name for name in vars(layout) if name.isupper()} - STAGES - ASIDES
    assert len(names) > 25
    for name in names:
        mine, theirs = getattr(layout, name), getattr(at, name)
        if isinstance(theirs, struct.Struct):
            mine, theirs = mine.format, theirs.format
        if name in IN_RUN:
            mine = f"{at.RUN}/{mine}"
        assert mine == theirs, name


def test_stages_are_numbered_as_the_contract_names_them(layout: ModuleType) -> None:
    for name in STAGES:
        assert at.STAGES[getattr(layout, name)] == name.lower()
    for name in ASIDES:
        assert at.ASIDES[getattr(layout, name)] == name.lower()


def test_only_the_agent_is_put_on_the_path() -> None:
    found = {entry.name for entry in AGENT_PATH.iterdir() if entry.name != "__pycache__"}
    assert found == {"sitecustomize.py", "rocm_agent"}
