"""The kernel as a source: its log, its journal, its uevents."""
