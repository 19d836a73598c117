"""How a snapshot's file is loaded, whichever torch does it."""

from __future__ import annotations

import json
import subprocess
import sys
import warnings
import zipfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from agent_by_hand import AGENT_PATH

sys.path.append(str(Path(__file__).resolve().parents[2] / "supervisor" / "agent" / "path"))

from rocm_agent.snapshots import files


def load_with_a_warning(path: str, *, map_location: str, weights_only: bool) -> dict[str, Any]:
    """Load as torch 2.0 and 2.1 do, which warn of a class of their own."""
    assert (Path(path).name, map_location) == ("snapshot.pt", "cpu")
    if weights_only:
        warnings.warn("TypedStorage is deprecated", UserWarning, stacklevel=1)
    return {"weights_only": weights_only}


def test_a_resume_adds_no_warning_to_what_the_training_writes(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "snapshot.pt", "w") as archive:
        archive.writestr("archive/data.pkl", b"")
    torch = SimpleNamespace(load=load_with_a_warning)
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        assert files.load(torch, str(tmp_path / "snapshot.pt")) == {"weights_only": True}
    assert seen == []


LOOKED_AT = """
import json, torch
from math import inf, nan
from rocm_agent.snapshots import files

def is_saved(name, *numbers):
    try:
        files.check_finite(torch, {"model": {"w": torch.ones(2), name: torch.tensor(numbers)}})
    except files.NotFinite:
        return False
    return True

print(json.dumps({
    "bound": is_saved("post_processor._pixel_threshold", nan),
    "mask": is_saved("attn.mask", 0.0, -inf), "anchors": is_saved("decoder.anchors", 0.5, inf),
    "not": [is_saved("attn.mask", 0.0, inf), is_saved("attn.mask", 0.0, nan), is_saved("decoder.anchors", 0.5, -inf),
            is_saved("decoder.anchors", 0.5, nan), is_saved("anchors.weight", 0.5, inf), is_saved("v", 0.5, -inf),
            is_saved("pixel_min", 0.5, nan), is_saved("logit_scale", nan)],
}))
"""


@pytest.mark.train
def test_what_is_infinite_by_design_is_saved_and_nothing_else_is(quickest_python: Path) -> None:
    """Masks of attention, bounds that are not set yet, RT-DETR's anchors: else no snapshot of these is taken."""
    command = [str(quickest_python), "-c", LOOKED_AT]
    finished = subprocess.run(
        command, capture_output=True, check=True, env={"PYTHONPATH": str(AGENT_PATH)}, text=True, timeout=300
    )
    assert json.loads(finished.stdout) == {
        "bound": True,
        "mask": True,
        "anchors": True,
        "not": [False] * 8,
    }
