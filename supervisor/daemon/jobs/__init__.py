"""The jobs of a daemon: taken up from an earlier one, and forgotten."""
