"""Reads a gradient scaler's state without waiting for the GPU, which its own state_dict would do."""

from __future__ import annotations

from typing import Any, Dict

TENSORS = {"scale": "_scale", "_growth_tracker": "_growth_tracker"}


def scaler_state(scaler: Any) -> Dict[str, Any]:
    """Return the state with what lies on a device as tensors."""
    found = {key: vars(scaler).get(name) for key, name in TENSORS.items()} if hasattr(scaler, "__dict__") else {}
    if not found or any(match is None for match in found.values()) or not scaler.is_enabled():
        return scaler.state_dict()
    plain = {
        "growth_factor": scaler.get_growth_factor(),
        "backoff_factor": scaler.get_backoff_factor(),
        "growth_interval": scaler.get_growth_interval(),
    }
    return {**plain, **found}


def settled_scaler(state: Dict[str, Any]) -> Dict[str, Any]:
    """Return the state that `load_state_dict` takes, once its tensors are on the CPU."""
    return {key: value.item() if hasattr(value, "item") else value for key, value in state.items()}
