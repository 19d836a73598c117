"""The daemon's work on checkpoints: collect, prove, search for where to resume."""
