"""The table of faults in the kernel log, loaded once from `tables/kernel.toml`."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from supervisor.sources.faults.table import Grammar, load

TABLE = Path(__file__).parent / "tables" / "kernel.toml"


@cache
def kernel_grammar() -> Grammar:
    """Return the table of kernel log faults. Raises GrammarError if the installed file is invalid."""
    return load(TABLE)
