"""Recorded attempts, judged again by the rules as they are now."""
