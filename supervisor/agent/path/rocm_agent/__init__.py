"""The calls that a training script can make to its supervisor. Without a supervisor each returns at once."""

from __future__ import annotations

from .script import checkpoint_saved, resume_from, save_requested, setting, stage, step

__all__ = ["checkpoint_saved", "resume_from", "save_requested", "setting", "stage", "step"]
