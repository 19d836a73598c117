"""The share of a GPU's memory that XLA takes: named as a setting that can be raised, and raised where that is wanted.

JAX gives XLA three quarters of a GPU when its first array is made, and a training that needs more fails although a
quarter is free. torch's allocator settings change nothing there. Settings of the owner's stay: a larger share, and
`XLA_PYTHON_CLIENT_ALLOCATOR=platform`, which knows no share.
"""

from __future__ import annotations

import os
import sys

from . import remedies

TYPE_CHECKING = False  # typing costs milliseconds at every interpreter's start
if TYPE_CHECKING:
    from typing import Any, Mapping, Optional

SETTING = "xla_memory"
VARIABLES = ("XLA_CLIENT_MEM_FRACTION", "XLA_PYTHON_CLIENT_MEM_FRACTION")
"""The second is the older name, which every version reads; JAX raises where both are set."""
ALLOCATOR = "XLA_PYTHON_CLIENT_ALLOCATOR"
DEFAULT_SHARE = 0.75
_GPUS = ("gpu", "cuda", "rocm")
_named = False


def apply() -> None:
    """Raise the share where that is wanted; XLA reads it when the first array is made."""
    wanted = remedies.wanted(SETTING)
    name = variable(os.environ)
    if not isinstance(wanted, float) or not may_rise(os.environ, wanted):
        return
    before = _read_share(os.environ.get(name))
    os.environ[name] = "%g" % wanted
    remedies.report_applied(SETTING, "%s=%g (%g before)" % (name, wanted, before))


def name_setting(jax: Any) -> None:
    """Name the setting once, in the process that trains: on a GPU, and where the share can still rise."""
    global _named
    if _named:
        return
    _named = True
    if str(jax.default_backend()) in _GPUS and may_rise(os.environ, None):
        remedies.asked(SETTING)


def name_setting_of_keras() -> None:
    """Do the same for a training of Keras, where JAX is its backend."""
    global _named
    if _named:
        return
    keras, jax = sys.modules.get("keras"), sys.modules.get("jax")
    if keras is not None and jax is not None and keras.backend.backend() == "jax":
        name_setting(jax)
    _named = True


def may_rise(environment: Mapping[str, str], share: Optional[float]) -> bool:
    """Whether XLA's share is a setting of this environment, and below `share`; None: below all of a GPU's memory."""
    if environment.get(ALLOCATOR, "").lower() == "platform":
        return False
    return _read_share(environment.get(variable(environment))) < (0.9 if share is None else share)


def variable(environment: Mapping[str, str]) -> str:
    """Return the variable to set: the one that the owner has set, else the older name."""
    return next((name for name in VARIABLES if environment.get(name)), VARIABLES[1])


def _read_share(text: Optional[str]) -> float:
    try:
        return float(text) if text else DEFAULT_SHARE
    except ValueError:
        return DEFAULT_SHARE
