"""Reports which precision a training asked for and which it uses, from its first steps."""

from __future__ import annotations

from functools import wraps
from typing import Any, Dict

from . import events
from .fence import fenced

DECIDED_AT_STEP = 20
ENTRIES_WATCHED = 200

NAMES = {"float16": "half", "bfloat16": "bfloat16"}


class Watch:
    """Precisions and scalings seen so far."""

    def __init__(self) -> None:
        self._entered: Dict[str, str] = {}
        """Precision by type of device."""
        self._entries = 0
        self._scaled = False
        self._steps = 0
        self.decided = False
        """Whether it is clear what the training does."""

    def begin(self, torch: Any) -> None:
        """Watch autocast being entered, a few hundred times."""
        kind = torch.amp.autocast_mode.autocast
        begin = kind.__enter__

        @wraps(begin)
        def __enter__(autocast: Any) -> Any:  # noqa: N807 - it takes that method's place
            result = begin(autocast)
            self._saw_entry(autocast)
            if self._entries >= ENTRIES_WATCHED and kind.__enter__ is __enter__:
                kind.__enter__ = begin
            return result

        kind.__enter__ = __enter__

    @fenced
    def _saw_entry(self, autocast: Any) -> None:
        self._entries += 1
        if getattr(autocast, "_enabled", False):
            self._entered[str(autocast.device)] = str(autocast.fast_dtype).rpartition(".")[2]

    def saw_scaling(self, scaler: Any) -> None:
        """A gradient scaler multiplied a loss: half precision was asked for."""
        if not self.decided and not self._scaled:
            self._scaled = bool(scaler.is_enabled())

    def stepped(self, loss: Any) -> None:
        """A step was made; after some of them it is clear what the training does."""
        self._steps += 1
        if self._steps >= DECIDED_AT_STEP and not self.decided:
            self.decided = True
            self._report_precision(loss)

    @fenced
    def _report_precision(self, loss: Any) -> None:
        device = getattr(getattr(loss, "device", None), "type", None)
        if device is None or not (self._entered or self._scaled):
            return
        asked = next((NAMES.get(item, item) for item in self._entered.values()), "half")
        used = NAMES.get(self._entered.get(device, ""), "single")
        why = "no autocast was entered for %s" % device if used == "single" else ""
        events.write("precision", asked=asked, used=used, why=why, device=device)
