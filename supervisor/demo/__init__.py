"""The demonstration: a real training, hurt on purpose; nothing here runs in production."""
