"""The daemon: inbox, loop, clock, periodic work and the wiring of all rooms; what to decide is not decided here."""
