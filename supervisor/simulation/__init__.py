"""Plays a training on many nodes through years of faults, with the policy of the product itself."""
