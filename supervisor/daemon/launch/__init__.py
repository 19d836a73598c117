"""What an attempt is launched with, and how: GPUs, remedies, the command, the launcher, the standby interpreter."""
