"""What holds for every run of the tests before any of their modules is loaded; the rest is in tests/conftest.py."""

from __future__ import annotations

import os

from tests.rigs.same_examples import draw_no_constants_of_modules

if "LAWS_EXAMPLES" not in os.environ:  # `make laws` looks for new examples: there each constant is a good one
    draw_no_constants_of_modules()
