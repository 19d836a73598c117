"""The memory that a training will need, reckoned from what its first steps took at one or more micro-batches."""
