"""What a daemon knows now, as metrics for Prometheus: declared, composed and written as text; pure functions."""
