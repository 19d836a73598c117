"""Trainings on several nodes: who is at fault, which nodes are excluded, and how all ranks start again."""
