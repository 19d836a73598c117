"""Manual pages and completion scripts, generated from the command tree and from the commented configuration."""
