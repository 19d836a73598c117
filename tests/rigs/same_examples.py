"""Has derandomised properties draw the same examples whatever else their process has imported.

Hypothesis draws one value in twenty from the constants in the source of loaded modules. A run of one file and a run of
all, or two parts of a run in parallel, load other modules: they would not draw the same. No setting switches that off
(Hypothesis 6.170), so its private function is replaced; tests/laws/test_laws_runner.py draws in two processes.
"""

from __future__ import annotations

from hypothesis.internal.conjecture import providers
from hypothesis.internal.constants_ast import Constants


def draw_no_constants_of_modules() -> None:
    """Switch the constants of loaded modules off, for the rest of this process."""
    if not callable(getattr(providers, "_get_local_constants", None)):
        raise RuntimeError(
            "this version of hypothesis has no providers._get_local_constants; find what now collects the constants of "
            "loaded modules and replace it in tests/rigs/same_examples.py"
        )
    providers._get_local_constants = Constants  # called without arguments it holds no constant
