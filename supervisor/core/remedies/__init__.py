"""Remedies as values: what a retry can change, which one comes next, what came of it."""
