"""The boot of this machine is read in one module of the agent, which imports nothing else of it."""

from __future__ import annotations

from pathlib import Path

AGENT = Path(__file__).resolve().parents[2] / "supervisor" / "agent" / "path" / "rocm_agent"


def test_the_boot_is_read_in_one_module() -> None:
    readers = [path.relative_to(AGENT) for path in AGENT.rglob("*.py") if 'boot_id"' in path.read_text()]
    assert readers == [Path("boot.py")]
    assert "from ." not in (AGENT / "boot.py").read_text()
