"""The daemon's own process: its start, its log, and what it says to systemd."""
