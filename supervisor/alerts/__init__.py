"""Alerts: notices of changes, what is sent when, channels that render and send them, and their delivery."""
