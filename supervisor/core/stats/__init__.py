"""Plain statistics over bounded series; no knowledge of trainings."""
