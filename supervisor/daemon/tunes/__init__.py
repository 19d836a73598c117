"""Tunes of living trainings: those that are asked for, and those that begin by themselves."""
