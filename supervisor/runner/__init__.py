"""Decisions become processes here: folder, launch, signals, evidence, proving; nothing in this room decides."""
