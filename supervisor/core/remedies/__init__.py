"""Remedies as values: what a retry can change, which one comes next, and its outcome."""
