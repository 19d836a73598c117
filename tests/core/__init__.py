"""Tests of the pure room: histories as data, no clock, no files."""
