"""The daemon: inbox, loop, clock, periodic work and the wiring of all rooms."""
