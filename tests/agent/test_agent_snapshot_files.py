"""How a snapshot's file is loaded, whichever torch does it."""

from __future__ import annotations

import sys
import warnings
import zipfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

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
