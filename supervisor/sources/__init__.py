"""Readers of files, sensors, tools and the kernel log; this package only reads."""
