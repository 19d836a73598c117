"""The kernel log's table of faults, loaded once: its wordings stand in `tables/kernel.toml`, not here."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from supervisor.sources.grammar import Grammar, load

TABLE = Path(__file__).parent / "tables" / "kernel.toml"


@cache
def kernel_grammar() -> Grammar:
    """Return the table of what the kernel log says; GrammarError where the installation's file is broken."""
    return load(TABLE)
