"""The pure room: facts, rules and decisions; no clock, no I/O, no logging, no threads."""
