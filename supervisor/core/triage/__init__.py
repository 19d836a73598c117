"""Triage: what the replays of a bad step prove, and the progress of the triage before a retry."""
