"""The settings: a TOML file read once, checked whole, and turned into frozen facts; nothing is started from here."""

from supervisor.config.load import Checked, check, check_text, load
from supervisor.config.problems import ConfigError, Level, Problem
from supervisor.config.settings import Settings

__all__ = ["Checked", "ConfigError", "Level", "Problem", "Settings", "check", "check_text", "load"]
