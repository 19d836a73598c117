"""What a training script may tell its supervisor; every call is free and does nothing where there is none."""

from __future__ import annotations

from .script import checkpoint_saved, resume_from, save_requested, setting, stage, step

__all__ = ["checkpoint_saved", "resume_from", "save_requested", "setting", "stage", "step"]
