"""Checkpoints as values: what is known of each, which are kept, whether one continues the other."""
