"""Prints what came of an ETTR trial beside what must be; it measures nothing."""

from __future__ import annotations

import sys
from typing import Any

ETTR_MUST, HOURLY_MUST = 0.90, 0.99
AGREE = 0.01
"""How far the two ways of reckoning may lie apart."""


def say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def report(reported: dict[str, Any]) -> bool:
    """Print the figures; return whether every must is met."""
    names = " ".join(f"{name:>6}" for name in ("found", "lost", "down", "start", "cost"))
    say(f"\n{'fault, all in seconds':<21} {'found as':<27} {'remedy':<16} {names}  hourly")
    for fault in reported["faults"]:
        after = "-" if fault["found_s"] is None else f"{fault['found_s']:.1f}"
        costs = " ".join(f"{fault[name]:6.1f}" for name in ("lost_s", "down_s", "start_s", "cost_s"))
        how = f"{fault['name']:<21} {fault['rule']:<27} {fault['remedy']:<16}"
        say(f"{how} {after:>6} {costs}  {1 - fault['cost_s'] / 3600:.4f}")
    for message in reported["unmeant"]:
        say(f"beside these: {message}")
    spent = {use: seconds for use, seconds in reported["account"]["seconds"].items() if seconds > 0}
    say("\naccount: " + ", ".join(f"{use} {seconds:.1f} s" for use, seconds in spent.items()))
    say(
        f"{reported['snapshots']} snapshots: stalled {reported['snapshot_stall_s'] * 1e3:.1f} ms, written in "
        f"{reported['snapshot_write_s']:.2f} s each, on average; work lost by the log {reported['lost_log_s']:.1f} s"
    )
    apart = abs(reported["ettr_account"] - reported["ettr_log"])
    figures = (
        ("ETTR by the account", reported["ettr_account"], ETTR_MUST),
        ("ETTR by the training's log", reported["ettr_log"], ETTR_MUST),
        (
            f"one fault an hour, a snapshot each {reported['hourly_every_s']:.0f} s",
            reported["ettr_hourly"],
            HOURLY_MUST,
        ),
        ("one fault an hour, costs as measured", reported["ettr_hourly_as_measured"], HOURLY_MUST),
    )
    say("")
    for name, value, must in figures:
        verdict = "met" if value >= must else "MISSED"
        say(f"{name:<42} {value:.4f}   must be >= {must:.2f}   {verdict:<6}   (ByteRobust 0.97)")
    say(f"{'the two apart by':<42} {apart:.4f}   must be <= {AGREE:.2f}   {'met' if apart <= AGREE else 'MISSED'}")
    return apart <= AGREE and all(value >= must for _, value, must in figures)
