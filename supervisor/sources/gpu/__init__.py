"""Sources of GPU readings, by vendor and interface."""
