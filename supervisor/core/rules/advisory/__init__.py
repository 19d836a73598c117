"""Rules that only warn; none of them stops a training."""
