"""Measures the memory of a training's first steps and ends it, for `supervisorctl estimate`."""
